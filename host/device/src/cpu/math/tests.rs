#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)]

use super::super::simd::{Isa, Kernel};
use super::*;

#[derive(Clone, Copy)]
enum Function {
    Exp,
    Tanh,
    Sigmoid,
    Erf,
}

struct Map<'a> {
    function: Function,
    values: &'a mut [f32],
}

impl Kernel for Map<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for chunk in self.values.chunks_exact_mut(16) {
            for at in (0..16).step_by(S::LANES) {
                unsafe {
                    let p = chunk.as_mut_ptr().add(at);
                    let x = S::load(p);
                    let y = match self.function {
                        Function::Exp => exp::<S>(x),
                        Function::Tanh => tanh::<S>(x),
                        Function::Sigmoid => sigmoid::<S>(x),
                        Function::Erf => erf::<S>(x),
                    };
                    S::store(p, y);
                }
            }
        }
    }
}

/// erf by its Taylor series (fine up to 6 in f64 with these many terms).
fn erf64(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= -x * x / f64::from(n);
        sum += term / f64::from(2 * n + 1);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

fn worst(function: Function, low: f32, high: f32, exact: impl Fn(f64) -> f64) -> f64 {
    let mut worst = 0f64;
    for isa in [Isa::detect(), Isa::Portable] {
        let x: Vec<f32> = (0..1 << 16)
            .map(|i| low + (high - low) * i as f32 / 65535.0)
            .collect();
        let mut y = x.clone();
        unsafe {
            isa.run(Map {
                function,
                values: &mut y,
            });
        };
        for (&x, &y) in x.iter().zip(&y) {
            let want = exact(f64::from(x));
            let ulp = f64::from(f32::EPSILON) * want.abs().max(1e-37);
            worst = worst.max((f64::from(y) - want).abs() / ulp);
        }
    }
    worst
}

#[test]
fn errors_are_a_few_units_in_the_last_place() {
    assert!(worst(Function::Exp, -86.0, 88.7, f64::exp) < 1.5);
    assert!(worst(Function::Tanh, -12.0, 12.0, f64::tanh) < 2.0);
    assert!(worst(Function::Tanh, -0.7, 0.7, f64::tanh) < 2.0);
    assert!(worst(Function::Sigmoid, -80.0, 80.0, |x| 1.0 / (1.0 + (-x).exp())) < 3.0);
    assert!(worst(Function::Erf, -3.9, 3.9, erf64) < 3.0);
}

#[test]
fn extremes() {
    let mut values = [0f32; 16];
    values[..5].copy_from_slice(&[f32::NEG_INFINITY, f32::INFINITY, f32::NAN, -1000.0, 1000.0]);
    let mut exp = values;
    unsafe {
        Isa::detect().run(Map {
            function: Function::Exp,
            values: &mut exp,
        });
    };
    assert_eq!(
        [exp[0], exp[1], exp[3], exp[4], exp[5]],
        [0.0, f32::INFINITY, 0.0, f32::INFINITY, 1.0]
    );
    assert!(exp[2].is_nan());
    let mut tanh = values;
    unsafe {
        Isa::detect().run(Map {
            function: Function::Tanh,
            values: &mut tanh,
        });
    };
    assert_eq!(
        [tanh[0], tanh[1], tanh[3], tanh[4], tanh[5]],
        [-1.0, 1.0, -1.0, 1.0, 0.0]
    );
    assert!(tanh[2].is_nan());
    let mut erf = values;
    unsafe {
        Isa::detect().run(Map {
            function: Function::Erf,
            values: &mut erf,
        });
    };
    assert_eq!([erf[0], erf[1], erf[3], erf[4]], [-1.0, 1.0, -1.0, 1.0]);
}
