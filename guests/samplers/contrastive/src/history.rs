//! Hidden states of the positions before.

/// Bytes of states that are kept, whatever the window.
const BYTES: usize = 48 << 20;

/// Lanes of a dot product, so that it takes vector instructions.
const LANES: usize = 16;

/// The last ones, each of length 1.
#[derive(Clone, Debug)]
pub struct History {
    /// Positions.
    window: usize,
    /// `[positions, width]`, a ring.
    states: Vec<f32>,
    /// Where the next goes, in numbers.
    next: usize,
}

impl History {
    pub fn new(window: usize) -> Self {
        Self {
            window,
            states: vec![],
            next: 0,
        }
    }

    pub fn push(&mut self, state: &[f32]) {
        let most = self.window.min(BYTES / 4 / state.len().max(1)).max(1) * state.len();
        let state = unit(state);
        if self.states.len() < most {
            self.states.extend(state);
        } else {
            self.states[self.next..][..state.len()].copy_from_slice(&state);
            self.next = (self.next + state.len()) % most;
        }
    }

    /// Largest cosine of the angle to one of them; 0 without any.
    pub fn likeness(&self, state: &[f32]) -> f32 {
        let state = unit(state);
        let cosines = self
            .states
            .chunks_exact(state.len().max(1))
            .map(|other| dot(other, &state));
        cosines.reduce(f32::max).unwrap_or(0.0)
    }
}

/// Of length 1; zeros stay.
fn unit(state: &[f32]) -> Vec<f32> {
    let length = dot(state, state).sqrt();
    let by = if length > 0.0 { 1.0 / length } else { 0.0 };
    state.iter().map(|x| x * by).collect()
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a, b) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest = a.remainder().iter().zip(b.remainder());
    let mut sum: f32 = rest.map(|(x, y)| x * y).sum();
    let mut lanes = [0.0; LANES];
    for (a, b) in a.zip(b) {
        for (lane, (x, y)) in lanes.iter_mut().zip(a.iter().zip(b)) {
            *lane += x * y;
        }
    }
    sum += lanes.iter().sum::<f32>();
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn likeness_is_the_largest_cosine() {
        let mut history = History::new(8);
        assert_eq!(history.likeness(&[1.0, 0.0]), 0.0);
        history.push(&[2.0, 0.0]);
        history.push(&[0.0, -3.0]);
        assert_eq!(history.likeness(&[5.0, 0.0]), 1.0);
        // (3, 4) has cosines 0.6 and -0.8.
        assert!((history.likeness(&[3.0, 4.0]) - 0.6).abs() < 1e-6);
        assert_eq!(history.likeness(&[0.0, 0.0]), 0.0);
    }

    #[test]
    fn the_window_keeps_the_last() {
        let mut history = History::new(2);
        for state in [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]] {
            history.push(&state);
        }
        assert_eq!(history.likeness(&[1.0, 0.0, 0.0]), 0.0);
        assert_eq!(history.likeness(&[0.0, 1.0, 0.0]), 1.0);
        assert_eq!(history.likeness(&[0.0, 0.0, 1.0]), 1.0);
    }

    #[test]
    fn long_states_are_summed_whole() {
        let a: Vec<f32> = (0..37).map(|i| i as f32).collect();
        // 0² + … + 36².
        assert_eq!(dot(&a, &a), 16206.0);
    }
}
