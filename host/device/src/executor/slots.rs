//! What the executor remembers about each running sequence.

use std::sync::Arc;

use guesthouse_engine::{
    Admission, BlockId, ExecutorInfo, GroupId, GroupKind, RandomKey, SamplingPlan, Slot, TokenId,
};

use crate::history::History;
use crate::prompt::{PromptMarks, PromptRules};

/// One running sequence.
pub(super) struct SlotState {
    pub history: History,
    /// Counts admissions.
    pub generation: u64,
    pub prompt_len: u32,
    pub admitted_len: u32,
    pub marks: PromptMarks,
    pub sampling: Arc<SamplingPlan>,
    pub random: RandomKey,
    /// A mirostat stage's state after the history's tokens; `None` until one was drawn.
    pub mu: Option<f32>,
    /// Block table of each group.
    pub tables: Vec<Vec<BlockId>>,
}

/// All slots. Errors say how a plan breaks the contract.
pub(super) struct Slots {
    info: ExecutorInfo,
    rules: PromptRules,
    slots: Vec<Option<SlotState>>,
    admissions: u64,
}

impl Slots {
    pub(super) fn new(info: ExecutorInfo, rules: PromptRules) -> Self {
        let slots = (0..info.slots).map(|_| None).collect();
        Self {
            info,
            rules,
            slots,
            admissions: 0,
        }
    }

    pub(super) fn release(&mut self, slot: Slot) -> Result<(), String> {
        self.entry(slot)?
            .take()
            .map(|_| ())
            .ok_or_else(|| format!("slot {} is released but empty", slot.0))
    }

    pub(super) fn admit(&mut self, admission: &Admission) -> Result<(), String> {
        let Admission {
            slot,
            tokens,
            prompt_len,
            sampling,
            random,
            mu,
            blocks,
        } = admission;
        let groups = self.info.groups.len();
        if blocks.len() != groups {
            return Err(format!(
                "slot {}: {} block tables for {groups} cache groups",
                slot.0,
                blocks.len()
            ));
        }
        for (group, table) in blocks.iter().enumerate() {
            for &block in table {
                self.check_block(GroupId(group as u32), block)?;
            }
        }
        self.check_tokens(tokens)?;
        if *prompt_len as usize > tokens.len() || tokens.len() > self.info.max_len as usize {
            return Err(format!(
                "slot {}: prompt of {prompt_len} among {} tokens, at most {}",
                slot.0,
                tokens.len(),
                self.info.max_len
            ));
        }
        self.admissions += 1;
        let state = SlotState {
            generation: self.admissions,
            history: History::for_plan(tokens, *prompt_len as usize, sampling),
            prompt_len: *prompt_len,
            admitted_len: tokens.len() as u32,
            marks: self.rules.marks(&tokens[..*prompt_len as usize]),
            sampling: Arc::clone(sampling),
            random: *random,
            mu: *mu,
            tables: blocks.clone(),
        };
        let entry = self.entry(*slot)?;
        if entry.is_some() {
            return Err(format!("slot {} is admitted twice", slot.0));
        }
        *entry = Some(state);
        Ok(())
    }

    pub(super) fn get(&self, slot: Slot) -> Result<&SlotState, String> {
        let state = self.slots.get(slot.0 as usize).and_then(Option::as_ref);
        state.ok_or_else(|| format!("slot {} is empty", slot.0))
    }

    pub(super) fn get_mut(&mut self, slot: Slot) -> Result<&mut SlotState, String> {
        let state = self.slots.get_mut(slot.0 as usize).and_then(Option::as_mut);
        state.ok_or_else(|| format!("slot {} is empty", slot.0))
    }

    /// Appends a block to a slot's table.
    pub(super) fn push_block(
        &mut self,
        slot: Slot,
        group: GroupId,
        block: BlockId,
    ) -> Result<(), String> {
        self.check_block(group, block)?;
        self.get_mut(slot)?.tables[group.0 as usize].push(block);
        Ok(())
    }

    /// Whether the tables of a slot reach position `end`.
    pub(super) fn check_tables(&self, slot: Slot, end: u32) -> Result<(), String> {
        let state = self.get(slot)?;
        for (group, (info, table)) in self.info.groups.iter().zip(&state.tables).enumerate() {
            let need = match info.kind {
                GroupKind::Recurrent => 1,
                GroupKind::Full | GroupKind::Window { .. } => {
                    end.div_ceil(self.info.block_size) as usize
                }
            };
            if table.len() < need {
                return Err(format!(
                    "slot {}: group {group} has {} blocks where {need} are needed",
                    slot.0,
                    table.len()
                ));
            }
        }
        Ok(())
    }

    pub(super) fn check_block(&self, group: GroupId, block: BlockId) -> Result<(), String> {
        match self.info.groups.get(group.0 as usize) {
            Some(info) if block.0 < info.blocks => Ok(()),
            Some(info) => Err(format!(
                "block {} of group {}, which has {}",
                block.0, group.0, info.blocks
            )),
            None => Err(format!("group {} does not exist", group.0)),
        }
    }

    pub(super) fn check_tokens(&self, tokens: &[TokenId]) -> Result<(), String> {
        match tokens.iter().find(|&&t| t >= self.info.vocab) {
            Some(t) => Err(format!(
                "token {t} is outside the vocabulary of {}",
                self.info.vocab
            )),
            None => Ok(()),
        }
    }

    fn entry(&mut self, slot: Slot) -> Result<&mut Option<SlotState>, String> {
        let n = self.slots.len();
        self.slots
            .get_mut(slot.0 as usize)
            .ok_or_else(|| format!("slot {} of {n}", slot.0))
    }
}
