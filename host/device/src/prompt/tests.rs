#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;

const MASK: u32 = 7;
const GMASK: u32 = 8;
const BOS: u32 = 9;

fn chatglm() -> PromptRules {
    PromptRules {
        prefix: Some(Prefix::Before(BOS)),
        glm: Some(GlmIds {
            mask: MASK,
            gmask: GMASK,
            bos: BOS,
        }),
    }
}

/// Worked out by hand after `get_position_ids` and `get_masks` of ChatGLM-6B's modeling_chatglm.py.
#[test]
fn chatglm_positions_and_prefix() {
    // A question, then gmask and bos; two more tokens are generated.
    let marks = chatglm().marks(&[1, 2, 3, GMASK, BOS]);
    let glm: Vec<_> = (0..7).map(|p| marks.glm(p)).collect();
    assert_eq!(
        glm,
        [[0, 0], [1, 0], [2, 0], [3, 0], [3, 1], [3, 2], [3, 3]]
    );
    let visible: Vec<_> = (0..7).map(|p| marks.visible_to(p, 7)).collect();
    assert_eq!(visible, [4, 4, 4, 4, 5, 6, 7]);
}

#[test]
fn gmask_goes_before_mask_and_the_first_of_each_counts() {
    let marks = chatglm().marks(&[1, MASK, 2, GMASK, GMASK, 3, BOS, 4, BOS]);
    assert_eq!(marks.mask_at, 3);
    assert_eq!(marks.block_start, 6);
    assert_eq!(marks.prefix_len, 6);
    let marks = chatglm().marks(&[1, MASK, 2, BOS]);
    assert_eq!(marks.glm(3), [1, 1]);
}

#[test]
fn a_prompt_without_marks_is_all_prefix() {
    let marks = chatglm().marks(&[1, 2, 3]);
    assert_eq!(marks.prefix_len, 3);
    assert_eq!(marks.glm(2), [2, 0]);
    assert_eq!(marks.glm(3), [2, 1]);
}

#[test]
fn causal_rules_leave_everything_causal() {
    let rules = PromptRules::default();
    assert!(!rules.whole_prompt());
    let marks = rules.marks(&[1, 2, 3]);
    assert_eq!(marks, PromptMarks::default());
    assert_eq!(marks.visible_to(1, 3), 2);
}

#[test]
fn nothing_beyond_what_is_written_is_visible() {
    let marks = chatglm().marks(&[1; 10]);
    assert_eq!(marks.visible_to(2, 6), 6);
    assert_eq!(marks.visible_to(7, 8), 8);
}
