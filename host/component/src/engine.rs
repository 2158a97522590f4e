//! The one wasmtime engine.

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

/// Makes the engine. Everything here is part of the compatibility hash of compiled code, except pool sizes.
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
    let mut wasm = Config::new();
    match config.clock {
        Clock::Time => wasm.epoch_interruption(true),
        Clock::Fuel => wasm
            .consume_fuel(true)
            .cranelift_nan_canonicalization(true)
            .relaxed_simd_deterministic(true),
    };
    wasm.wasm_component_model(true)
        .concurrency_support(false)
        .memory_init_cow(true)
        .max_wasm_stack(WASM_STACK)
        .async_stack_size(FIBER_STACK)
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool));
    Engine::new(&wasm).map_err(|error| ComponentError::Engine {
        reason: format!("{error:#}"),
    })
}
