//! The rules of [`StepPlan`], checked one by one.

use super::{Pending, SlotState};
use crate::layout::Layout;
use crate::{BlockId, ExecutorInfo, GroupId, GroupInfo, GroupKind, Input, Row, Slot, StepPlan};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

/// What a launched step uses until it is collected.
#[derive(Debug, Default)]
pub(super) struct Touched {
    slots: BTreeSet<Slot>,
    blocks: BTreeSet<(GroupId, BlockId)>,
}

/// The executor's state that a plan is checked against.
pub(super) struct Contract<'a> {
    pub(super) info: &'a ExecutorInfo,
    pub(super) slots: &'a BTreeMap<Slot, SlotState>,
    pub(super) steps: &'a VecDeque<Pending>,
}

impl Contract<'_> {
    fn groups(&self) -> impl Iterator<Item = (GroupId, GroupInfo)> + '_ {
        self.info
            .groups
            .iter()
            .enumerate()
            .map(|(index, info)| (GroupId(index as u32), *info))
    }

    /// Releases and admissions, against the slots as they were.
    pub(super) fn check_entry(&self, plan: &StepPlan) -> Result<(), String> {
        let mut occupied: BTreeSet<Slot> = self.slots.keys().copied().collect();
        for slot in &plan.released {
            if !occupied.remove(slot) {
                return Err(format!("releases slot {}, which is empty", slot.0));
            }
            if let Some(step) = self
                .steps
                .iter()
                .find(|step| step.touched.slots.contains(slot))
            {
                return Err(format!(
                    "releases slot {}, which step {} uses",
                    slot.0, step.ticket.0
                ));
            }
        }
        for admission in &plan.admitted {
            let slot = admission.slot.0;
            if slot >= self.info.slots || !occupied.insert(admission.slot) {
                return Err(format!(
                    "admits to slot {slot}, which is taken or does not exist"
                ));
            }
            if admission.prompt_len == 0 || admission.prompt_len as usize > admission.tokens.len() {
                return Err(format!(
                    "slot {slot}: a prompt of {} tokens",
                    admission.prompt_len
                ));
            }
            if admission.blocks.len() != self.info.groups.len() {
                return Err(format!(
                    "slot {slot}: {} block tables",
                    admission.blocks.len()
                ));
            }
        }
        Ok(())
    }

    /// Rows, copies and samples, against slots with the plan's admissions, inputs and blocks.
    pub(super) fn check_rows(&self, plan: &StepPlan) -> Result<Touched, String> {
        let tokens: u64 = plan.rows.iter().map(|row| u64::from(row.len)).sum();
        if plan.rows.is_empty() || tokens > u64::from(self.info.max_step_tokens) {
            return Err(format!("{} rows with {tokens} tokens", plan.rows.len()));
        }
        let mut touched = Touched::default();
        let owners = self.owners();
        let copied: BTreeSet<_> = plan
            .copies
            .iter()
            .map(|copy| (copy.group, copy.to))
            .collect();
        for copy in &plan.copies {
            touched
                .blocks
                .extend([(copy.group, copy.from), (copy.group, copy.to)]);
        }
        for row in &plan.rows {
            self.check_row(row)
                .map_err(|message| format!("slot {}: {message}", row.slot.0))?;
            if !touched.slots.insert(row.slot) {
                return Err(format!("two rows for slot {}", row.slot.0));
            }
            let is_new = |block: &(GroupId, BlockId)| {
                copied.contains(block) || row.new_blocks.contains(block)
            };
            for (group, block) in self.blocks_of(row, Access::Write) {
                match owners.get(&(group, block)).map(Vec::as_slice) {
                    Some([owner]) if *owner == row.slot => {}
                    other => {
                        return Err(format!(
                            "slot {} writes block {block:?} of {other:?}",
                            row.slot.0
                        ));
                    }
                }
                let user = self
                    .steps
                    .iter()
                    .find(|step| step.touched.blocks.contains(&(group, block)));
                if is_new(&(group, block))
                    && let Some(step) = user
                {
                    return Err(format!(
                        "slot {} takes block {block:?}, which step {} uses",
                        row.slot.0, step.ticket.0
                    ));
                }
            }
            touched.blocks.extend(self.blocks_of(row, Access::Any));
        }
        for task in &plan.samples {
            let row = plan
                .rows
                .get(task.row as usize)
                .ok_or("a sample names no row")?;
            let slot = self
                .slots
                .get(&task.slot)
                .ok_or("a sample's slot is empty")?;
            let leader = self.slots.get(&row.slot).ok_or("a row's slot is empty")?;
            if slot.history != leader.history
                || slot.history.len() != (row.start + row.len) as usize
                || task.back >= row.len
            {
                return Err(format!(
                    "slot {} samples where its history does not end",
                    task.slot.0
                ));
            }
            touched.slots.insert(task.slot);
        }
        Ok(touched)
    }

    fn check_row(&self, row: &Row) -> Result<(), String> {
        let slot = self.slots.get(&row.slot).ok_or("is empty")?;
        let end = u64::from(row.start) + u64::from(row.len);
        if row.len == 0 || end > u64::from(self.info.max_len) {
            return Err(format!("{} tokens from {}", row.len, row.start));
        }
        let exact = !matches!(row.input, Input::History);
        if (slot.history.len() as u64) < end || exact && slot.history.len() as u64 != end {
            return Err(format!(
                "history of {} for a row up to {end}",
                slot.history.len()
            ));
        }
        if matches!(row.input, Input::From { .. }) && row.len != 1 {
            return Err("a sampled token is one token".to_owned());
        }
        if slot.computed != row.start {
            return Err(format!(
                "starts at {}, but {} are computed",
                row.start, slot.computed
            ));
        }
        let prompt_len = slot.admission.prompt_len;
        if self.info.whole_prompt
            && row.start < prompt_len
            && (row.start > 0 || end < u64::from(prompt_len))
        {
            return Err("its prompt is split".to_owned());
        }
        let passed = |len| {
            self.info
                .lengths
                .passed(u32::try_from(len).unwrap_or(u32::MAX))
        };
        if passed(end) > passed(slot.admission.tokens.len() as u64) {
            return Err("is not computed anew beyond a length at which values change".to_owned());
        }
        if row.prompt_logprobs.is_some() && row.start + 1 >= prompt_len {
            return Err("has no prompt token to score".to_owned());
        }
        for ((group, info), table) in self.groups().zip(&slot.admission.blocks) {
            if info.kind == GroupKind::Recurrent && table.len() != 1 {
                return Err(format!("{} state blocks", table.len()));
            }
            if table.iter().any(|block| block.0 >= info.blocks) {
                return Err(format!("a block of group {} does not exist", group.0));
            }
        }
        Ok(())
    }

    /// Which slots' tables have a block that they still see.
    fn owners(&self) -> HashMap<(GroupId, BlockId), Vec<Slot>> {
        let layout = Layout::new(self.info);
        let mut owners: HashMap<_, Vec<Slot>> = HashMap::new();
        for (slot, state) in self.slots {
            for ((group, info), table) in layout.groups().zip(&state.admission.blocks) {
                let visible = layout.first_visible(info, state.computed);
                for block in table.iter().skip(visible) {
                    owners.entry((group, *block)).or_default().push(*slot);
                }
            }
        }
        owners
    }

    fn blocks_of(&self, row: &Row, access: Access) -> Vec<(GroupId, BlockId)> {
        let layout = Layout::new(self.info);
        let Some(slot) = self.slots.get(&row.slot) else {
            return Vec::new();
        };
        let mut blocks = Vec::new();
        for ((group, info), table) in layout.groups().zip(&slot.admission.blocks) {
            let first = match access {
                Access::Any => layout.first_visible(info, row.start),
                Access::Write => layout.complete(info, row.start),
            };
            let end = layout.entries(info, row.start + row.len).min(table.len());
            blocks.extend(
                table[first.min(end)..end]
                    .iter()
                    .map(|block| (group, *block)),
            );
        }
        blocks
    }
}

#[derive(Clone, Copy)]
enum Access {
    Write,
    Any,
}
