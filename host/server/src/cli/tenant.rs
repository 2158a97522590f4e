//! `guesthouse tenant`: works on the file, whether or not a server runs on it, which takes changes over within seconds.

mod policy;
#[cfg(test)]
mod tests;

use super::state::StateFile;
use crate::admin::TenantCard;
use anyhow::{Context, Result};
use clap::{Args, Subcommand};
use guesthouse_tenants::{NewKey, Policy, TenantId, TenantRecord};
use std::io::{self, Write};
use std::time::Duration;

#[derive(Debug, Subcommand)]
pub(super) enum TenantCommand {
    /// Make the file of tenants, with none in it. A server on it asks for keys.
    Init(Init),
    /// Add a tenant. Prints its key, this once.
    Add(Add),
    /// List tenants, their keys' names and their limits.
    List(List),
    /// Make a further key of a tenant. Prints it, this once; older keys end.
    Rotate(Rotate),
    /// Remove a tenant with its keys and modules.
    Remove(Remove),
    /// Change what a tenant may do; what is not mentioned stays.
    Set(Set),
}

#[derive(Debug, Args)]
pub(super) struct Init {
    #[command(flatten)]
    file: StateFile,
}

#[derive(Debug, Args)]
pub(super) struct Add {
    /// Its name: 1 to 32 of a-z, 0-9 and '-'.
    id: TenantIdArg,
    #[command(flatten)]
    policy: policy::PolicyOptions,
    #[command(flatten)]
    file: StateFile,
}

#[derive(Debug, Args)]
pub(super) struct List {
    /// As JSON, an array.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    file: StateFile,
}

#[derive(Debug, Args)]
pub(super) struct Rotate {
    /// Whose.
    id: TenantIdArg,
    /// How long older keys stay good.
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    keep_old: u64,
    #[command(flatten)]
    file: StateFile,
}

#[derive(Debug, Args)]
pub(super) struct Remove {
    /// Which.
    id: TenantIdArg,
    #[command(flatten)]
    file: StateFile,
}

#[derive(Debug, Args)]
pub(super) struct Set {
    /// Which.
    id: TenantIdArg,
    #[command(flatten)]
    policy: policy::PolicyOptions,
    #[command(flatten)]
    file: StateFile,
}

#[derive(Clone, Debug)]
struct TenantIdArg(TenantId);

impl std::str::FromStr for TenantIdArg {
    type Err = guesthouse_tenants::BadName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        TenantId::parse(text).map(Self)
    }
}

impl TenantCommand {
    pub(super) fn run(self) -> Result<()> {
        self.write(&mut io::stdout().lock())
    }

    /// Only what programs read goes to `out`.
    fn write(self, out: &mut impl Write) -> Result<()> {
        match self {
            Self::Init(Init { file }) => Ok(file.open_or_make()?.require_keys()?),
            Self::Add(Add { id, policy, file }) => {
                let policy = policy.on(&Policy::default())?;
                let (tenant, key) = file.open_or_make()?.add(&id.0, &policy)?;
                eprintln!("added tenant {}; its key is not shown again", tenant.id);
                print_key(out, &key, &tenant.id)
            }
            Self::List(List { json, file }) => {
                let all = file.open()?.list();
                let text = if json { as_json(all)? } else { as_table(&all) };
                Ok(write!(out, "{text}")?)
            }
            Self::Rotate(Rotate { id, keep_old, file }) => {
                let key = file.open()?.rotate(&id.0, Duration::from_secs(keep_old))?;
                match keep_old {
                    0 => eprintln!("older keys of {} are no longer good", id.0),
                    s => eprintln!("older keys of {} are good for another {s} s", id.0),
                }
                print_key(out, &key, &id.0)
            }
            Self::Remove(Remove { id, file }) => {
                file.open()?.remove(&id.0)?;
                eprintln!("removed tenant {}", id.0);
                Ok(())
            }
            Self::Set(Set { id, policy, file }) => {
                let registry = file.open()?;
                match policy.whole()? {
                    Some(whole) => registry.set_policy(&id.0, &policy.on(&whole)?)?,
                    None => registry.patch_policy(&id.0, &policy.patch())?,
                };
                eprintln!("changed tenant {}", id.0);
                Ok(())
            }
        }
    }
}

fn print_key(out: &mut impl Write, key: &NewKey, id: &TenantId) -> Result<()> {
    writeln!(out, "{}", key.reveal())
        .and_then(|()| out.flush())
        .with_context(|| {
            format!(
                "the key was made and could not be printed; run `guesthouse tenant rotate {id}`"
            )
        })
}

fn as_json(all: Vec<TenantRecord>) -> Result<String> {
    let cards: Vec<TenantCard> = all.into_iter().map(TenantCard::from).collect();
    Ok(serde_json::to_string_pretty(&cards)? + "\n")
}

/// A line each.
fn as_table(all: &[TenantRecord]) -> String {
    let mut text = format!(
        "{:<32} {:>6} {:>4} {:>6} {:>8}  LIMITS\n",
        "TENANT", "NUMBER", "KEYS", "WEIGHT", "PRIORITY"
    );
    for record in all {
        let tenant = &record.tenant;
        let quotas = serde_json::to_value(tenant.policy.quotas).unwrap_or_default();
        let limits: Vec<String> = quotas
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, limit)| format!("{name}={limit}"))
            .collect();
        let limits = if limits.is_empty() {
            "none".to_owned()
        } else {
            limits.join(" ")
        };
        text.push_str(&format!(
            "{:<32} {:>6} {:>4} {:>6} {:>8}  {limits}\n",
            tenant.id.as_str(),
            tenant.number,
            record.keys.len(),
            tenant.policy.weight,
            tenant.policy.priority,
        ));
    }
    text
}
