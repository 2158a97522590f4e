//! What guests build, and what the passes make of it.

use super::{golden, open_dummy};
use crate::model::GuestChoice;
use crate::model::load::build_graph;
use crate::model::testing::modules;
use guesthouse_graph::{PassOptions, Totals, dump_graph, optimize};

#[test]
fn graphs_of_three_families_before_and_after_the_passes() {
    let modules = modules();
    for case in ["llama", "gemma3", "mixtral"] {
        let files = open_dummy(&golden(case));
        let built = build_graph(&modules, &files, &GuestChoice::default()).unwrap();
        let before = Totals::of(&built.graph);
        let text = format!("{before}\n{}", dump_graph(&built.graph));
        insta::assert_snapshot!(format!("{case}_before"), text);
        let after = optimize(built.graph, &PassOptions::default()).unwrap();
        assert_eq!(Totals::of(&after), before, "{case}: a pass loses nothing");
        insta::assert_snapshot!(format!("{case}_after"), dump_graph(&after));
    }
}
