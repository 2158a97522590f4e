//! The one wasmtime engine.

use wasmparser::WasmFeatures;
use wasmtime::{Config, Enabled, Engine, InstanceAllocationStrategy, PoolingAllocationConfig};

use crate::{Clock, ComponentError, RuntimeConfig};

/// Wasm frames of one call. Threads that make synchronous calls have 2 MiB, host frames included: running out of the
/// thread's own stack would abort the process.
const WASM_STACK: usize = 512 << 10;
/// Stack of a fiber: wasm frames and those of host functions above them.
const FIBER_STACK: usize = 2 << 20;
/// Memory of a dropped instance that stays mapped for the next one.
const KEEP_RESIDENT: usize = 2 << 20;
/// Core instances of one component: Python's shared libraries are one each.
pub(crate) const CORE_INSTANCES: u32 = 64;
/// Linear memories of one component: JavaScript's engine comes with two beside its own. Few modules have more than one.
const MEMORIES: u32 = 4;
/// Tables of one component.
pub(crate) const TABLES: u32 = 4;

/// The proposals that modules may use: what wasmtime has on by default, in a build without garbage collection and threads.
pub(crate) const FEATURES: WasmFeatures = WasmFeatures::WASM3
    .union(WasmFeatures::COMPONENT_MODEL)
    .difference(WasmFeatures::GC_TYPES)
    .difference(WasmFeatures::EXCEPTIONS)
    .difference(WasmFeatures::THREADS);

/// Makes the engine that runs guests. Pool sizes are no part of the compatibility hash of compiled code.
pub(crate) fn engine(config: &RuntimeConfig) -> Result<Engine, ComponentError> {
    let slots = u32::try_from(config.pool.total()).unwrap_or(u32::MAX);
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(slots)
        .total_core_instances(slots.saturating_mul(8).max(CORE_INSTANCES))
        .max_core_instances_per_component(CORE_INSTANCES)
        .total_memories(slots.saturating_add(64 * MEMORIES))
        .max_memories_per_component(MEMORIES)
        .total_tables(slots.saturating_mul(TABLES))
        .max_tables_per_component(TABLES)
        .table_elements(64 << 10)
        .max_component_instance_size(4 << 20)
        .max_core_instance_size(4 << 20)
        .total_stacks(slots)
        .max_memory_size(config.max_memory())
        .linear_memory_keep_resident(KEEP_RESIDENT)
        .table_keep_resident(64 << 10)
        .pagemap_scan(Enabled::Auto);
    let mut wasm = settings(config.clock);
    wasm.memory_init_cow(true)
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    make(&wasm)
}

/// Makes an engine that compiles for the other one, on one thread, and runs nothing.
pub(crate) fn compiler(clock: Clock) -> Result<Engine, ComponentError> {
    let mut wasm = settings(clock);
    wasm.parallel_compilation(false);
    make(&wasm)
}

/// All that compiled code depends on.
fn settings(clock: Clock) -> Config {
    let mut wasm = Config::new();
    match clock {
        Clock::Time => wasm.epoch_interruption(true),
        Clock::Fuel => wasm
            .consume_fuel(true)
            .cranelift_nan_canonicalization(true)
            .relaxed_simd_deterministic(true),
    };
    wasm.wasm_features(FEATURES.complement(), false)
        .wasm_features(FEATURES, true)
        .concurrency_support(false)
        .max_wasm_stack(WASM_STACK)
        .async_stack_size(FIBER_STACK);
    wasm
}

fn make(wasm: &Config) -> Result<Engine, ComponentError> {
    Engine::new(wasm).map_err(|error| ComponentError::Engine {
        reason: format!("{error:#}"),
    })
}

#[cfg(test)]
mod tests;
