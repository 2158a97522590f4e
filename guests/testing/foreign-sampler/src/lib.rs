//! A sampler guest that links the WASI interfaces a small program of another tool chain links.

wit_bindgen::generate!({
    inline: r#"
        package guesthouse:foreign;
        world foreign-sampler {
            include guesthouse:sampling/sampler-guest@0.1.0;
            import wasi:cli/stderr@0.2.3;
            import wasi:cli/environment@0.2.3;
            import wasi:cli/exit@0.2.3;
            import wasi:random/insecure-seed@0.2.3;
        }
    "#,
    path: ["../../../wit/common", "../../../wit/sampling", "../foreign-chat/wit"],
    world: "guesthouse:foreign/foreign-sampler",
    generate_all,
});

use exports::guesthouse::sampling::plan::{
    Draw, Guest, GuestSampler, ModelFacts, Sampler, SamplingPlan,
};
use guesthouse::common::types::Error;

struct Foreign;

struct Hold(String);

impl Guest for Foreign {
    type Sampler = Hold;
}

impl GuestSampler for Hold {
    fn create(request: String, _: ModelFacts) -> Result<Sampler, Error> {
        Ok(Sampler::new(Hold(request)))
    }

    fn plan(&self) -> Result<SamplingPlan, Error> {
        let stderr = wasi::cli::stderr::get_stderr();
        let told = stderr.blocking_write_and_flush(self.0.as_bytes());
        match self.0.as_str() {
            "exit" => wasi::cli::exit::exit(Err(())),
            "abort" => std::process::abort(),
            _ => {}
        }
        if told.is_err() || !wasi::cli::environment::get_environment().is_empty() {
            return Err(Error::Other("not an empty world".into()));
        }
        let (seed, _) = wasi::random::insecure_seed::insecure_seed();
        Ok(SamplingPlan {
            stages: vec![],
            draw: Draw::Greedy,
            seed: Some(seed),
            ext: vec![],
        })
    }
}

export!(Foreign);
