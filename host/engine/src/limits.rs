//! What an engine can ever run: the checks before a request is queued.

use crate::layout::Layout;
use crate::{
    Asked, Attachments, Branching, Draw, EngineConfig, ExecutorInfo, LengthRules, Request,
    SubmitError, Task,
};

/// Fixed limits of an engine; checks requests without touching its state.
#[derive(Clone, Debug)]
pub struct Limits {
    layout: Layout,
    max_len: u32,
    vocab: u32,
    max_waiting: usize,
    max_running: u32,
    max_branches: u32,
    max_step_tokens: u32,
    step_overhead: u32,
    whole_prompt: bool,
    lengths: LengthRules,
    task: Task,
}

impl Limits {
    /// The tighter of both.
    #[must_use]
    pub fn new(info: &ExecutorInfo, config: &EngineConfig) -> Self {
        let max_step_tokens = info.max_step_tokens.min(config.max_step_tokens).max(1);
        let max_running = u32::try_from(config.max_running)
            .unwrap_or(u32::MAX)
            .min(info.slots)
            .min(max_step_tokens);
        Self {
            layout: Layout::new(info),
            max_len: info.max_len,
            vocab: info.vocab,
            max_waiting: config.max_waiting,
            max_running: max_running.max(1),
            max_branches: config.max_branches.clamp(1, max_running.max(1)),
            max_step_tokens,
            step_overhead: info.step_overhead,
            whole_prompt: info.whole_prompt,
            lengths: info.lengths.clone(),
            task: info.task,
        }
    }

    /// Longest sequence, prompt and output together, tokens.
    #[must_use]
    pub fn max_len(&self) -> u32 {
        self.max_len
    }

    /// Most tokens in one step.
    #[must_use]
    pub fn max_step_tokens(&self) -> u32 {
        self.max_step_tokens
    }

    /// Most sequences that run at once.
    #[must_use]
    pub fn max_running(&self) -> u32 {
        self.max_running
    }

    /// Most branches of a search that live at once.
    #[must_use]
    pub fn max_branches(&self) -> u32 {
        self.max_branches
    }

    /// Most requests that wait.
    #[must_use]
    pub fn max_waiting(&self) -> usize {
        self.max_waiting
    }

    /// What the model was made for.
    #[must_use]
    pub fn task(&self) -> Task {
        self.task
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) fn vocab(&self) -> u32 {
        self.vocab
    }

    pub(crate) fn step_overhead(&self) -> u32 {
        self.step_overhead
    }

    /// Sequences of a request that can run at once.
    fn most_at_once(&self, request: &Request) -> u32 {
        let own = request.owner.max_running.unwrap_or(u32::MAX);
        self.max_running.min(own.max(1))
    }

    pub(crate) fn whole_prompt(&self) -> bool {
        self.whole_prompt
    }

    pub(crate) fn lengths(&self) -> &LengthRules {
        &self.lengths
    }

    /// Choices that one prefill serves.
    pub(crate) fn choices_per_prefill(&self, request: &Request) -> u32 {
        match (request.params.max_tokens, self.layout.shares_blocks()) {
            (0, _) => request.params.n,
            (_, true) => self.most_at_once(request),
            (_, false) => 1,
        }
    }

    /// # Errors
    /// When a chooser is missing, or has nothing to choose.
    pub fn check_attachments(
        &self,
        request: &Request,
        attachments: &Attachments,
    ) -> Result<(), SubmitError> {
        match (request.sampling.draw.asked(), &attachments.chooser) {
            (Some(_), None) => Err(SubmitError::ChooserMissing),
            (None, Some(_)) => Err(SubmitError::ChooserUnused),
            (Some(_), Some(_)) if self.task == Task::Embed => Err(SubmitError::ChooserUnused),
            _ => Ok(()),
        }
    }

    /// # Errors
    /// When the request can never run.
    pub fn check(&self, request: &Request) -> Result<(), SubmitError> {
        let params = &request.params;
        if request.prompt.is_empty() {
            return Err(SubmitError::EmptyPrompt);
        }
        let prompt_len = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX);
        if u64::from(prompt_len) + u64::from(params.max_tokens) > u64::from(self.max_len) {
            return Err(SubmitError::TooLong {
                prompt_len,
                max_tokens: params.max_tokens,
                max_len: self.max_len,
            });
        }
        if let Some(position) = request.prompt.iter().position(|&token| token >= self.vocab) {
            let token = request.prompt[position];
            return Err(SubmitError::TokenOutOfVocabulary {
                token,
                position: position as u32,
                vocab: self.vocab,
            });
        }
        if params.task != self.task {
            return Err(SubmitError::WrongTask(self.task));
        }
        let plain = params.max_tokens == 0
            && params.n == 1
            && params.prompt_logprobs.is_none()
            && params.top_logprobs.is_none();
        match params.task {
            Task::Embed if !plain => return Err(SubmitError::EmbeddingParams),
            Task::Generate if params.max_tokens == 0 && params.prompt_logprobs.is_none() => {
                return Err(SubmitError::NothingToDo);
            }
            _ => {}
        }
        let queue = u32::try_from(self.max_waiting.max(1)).unwrap_or(u32::MAX);
        let asked = request.sampling.draw.asked();
        let limit = match self.layout.shares_blocks() || params.max_tokens == 0 {
            // The guest sees all choices at once.
            _ if asked.is_some_and(|asked| asked.branching == Branching::Choices) => {
                self.most_at_once(request)
            }
            true => self.max_running.saturating_mul(queue),
            false => queue,
        };
        if params.n == 0 || params.n > limit {
            return Err(SubmitError::ChoicesOutOfRange { n: params.n, limit });
        }
        if let Draw::Candidates(Asked { candidates: 0, .. }) = request.sampling.draw {
            return Err(SubmitError::NoCandidates);
        }
        if self.whole_prompt && prompt_len > self.max_step_tokens {
            return Err(SubmitError::PromptExceedsStep {
                prompt_len,
                max_step_tokens: self.max_step_tokens,
            });
        }
        // The last token is sampled but never computed.
        let tokens = prompt_len + params.max_tokens.saturating_sub(1);
        let chunk = if self.whole_prompt { prompt_len } else { 1 };
        for (group, info) in self.layout.groups() {
            let needed = self.layout.least_blocks(info, tokens, chunk);
            if needed > info.blocks {
                return Err(SubmitError::NeverFits {
                    tokens,
                    group,
                    needed,
                    blocks: info.blocks,
                });
            }
        }
        self.check_quota(request)
    }

    /// Its prompt and a token fit into what its tenant may hold.
    fn check_quota(&self, request: &Request) -> Result<(), SubmitError> {
        let Some(most) = request.owner.max_blocks else {
            return Ok(());
        };
        let prompt_len = request.prompt.len() as u32;
        let tokens = prompt_len + u32::from(request.params.max_tokens > 1);
        let needed: u64 = self
            .layout
            .groups()
            .map(|(_, info)| {
                u64::from(self.layout.least_blocks(info, tokens, self.max_step_tokens))
            })
            .sum();
        if needed > u64::from(most) {
            return Err(SubmitError::OverQuota {
                prompt_len,
                needed,
                max_blocks: most,
            });
        }
        Ok(())
    }
}
