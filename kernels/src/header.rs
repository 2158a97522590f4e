//! What a kernel file says about itself.

/// GPUs that a file compiles for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arch {
    /// This compute capability (major · 10 + minor) and every later one.
    From(u32),
    /// This one alone, with the features that no other has (`sm_90a`).
    Only(u32),
}

impl Arch {
    /// Whether the file compiles for a capability (major · 10 + minor).
    #[must_use]
    pub const fn covers(self, capability: u32) -> bool {
        match self {
            Self::From(least) => capability >= least,
            Self::Only(one) => capability == one,
        }
    }
}

/// The first lines of a `.cu` file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// GPUs.
    pub arch: Arch,
    /// Sets of definitions (`NAME` or `NAME=VALUE`) that the tests compile.
    pub variants: Vec<Vec<&'a str>>,
}

impl<'a> Header<'a> {
    /// Reads the comment lines that a file begins with; none where one is missing or malformed.
    #[must_use]
    pub fn parse(text: &'a str) -> Option<Self> {
        let comments = || {
            text.lines()
                .map_while(|line| line.strip_prefix("//"))
                .map(str::trim)
        };
        let arch = comments().find_map(|l| l.strip_prefix("arch:"))?.trim();
        let arch = arch.split_whitespace().next()?.strip_prefix("sm_")?;
        let arch = match (arch.strip_suffix('+'), arch.strip_suffix('a')) {
            (Some(least), _) => Arch::From(least.parse().ok()?),
            (None, Some(one)) => Arch::Only(one.parse().ok()?),
            (None, None) => return None,
        };
        let variants: Vec<Vec<&str>> = comments()
            .filter_map(|l| l.strip_prefix("variants:"))
            .flat_map(|l| l.split(';'))
            .map(|set| set.split_whitespace().collect())
            .collect();
        (!variants.is_empty()).then_some(Self { arch, variants })
    }
}

#[cfg(test)]
mod tests;
