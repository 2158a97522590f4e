//! Full validation: every type, constant and instruction, as the compiler would do it, and bounds on what makes the
//! compiler slow.

use wasmparser::{
    BinaryReaderError, Chunk, FuncToValidate, FuncValidatorAllocations, FunctionBody, Operator,
    Parser, ValidPayload, Validator, ValidatorResources, WasmFeatures,
};

use super::{at_most, malformed};
use crate::ComponentError;

/// Locals of one function, parameters included.
const LOCALS: u64 = 20_000;
/// Targets of one `br_table`.
const TARGETS: u64 = 20_000;
/// Blocks inside each other in one function: a `switch` has one for each case.
const BLOCKS: u64 = 5_000;

/// Validates all of `bytes`, which passed [`super::check`], with exactly the proposals in `features`.
pub(crate) fn validate(
    module: &str,
    bytes: &[u8],
    features: WasmFeatures,
) -> Result<(), ComponentError> {
    let refuse = |error: &BinaryReaderError| malformed(module, error);
    let mut validator = Validator::new_with_features(features);
    let mut allocations = FuncValidatorAllocations::default();
    let mut parser = Parser::new(0);
    parser.set_features(features);
    // Enclosing parsers, outermost first.
    let mut outer = Vec::new();
    let mut at = 0;
    loop {
        let chunk = parser.parse(&bytes[at..], true).map_err(|e| refuse(&e))?;
        let Chunk::Parsed { consumed, payload } = chunk else {
            return Err(ComponentError::Malformed {
                module: module.into(),
                offset: at as u64,
                reason: "cut off".into(),
            });
        };
        at += consumed;
        match validator.payload(&payload).map_err(|e| refuse(&e))? {
            ValidPayload::Ok => {}
            ValidPayload::Parser(inner) => outer.push(std::mem::replace(&mut parser, inner)),
            ValidPayload::Func(function, body) => {
                allocations = self::function(module, function, &body, allocations)?;
            }
            ValidPayload::End(_) => match outer.pop() {
                Some(enclosing) => parser = enclosing,
                None if at == bytes.len() => return Ok(()),
                None => {
                    return Err(ComponentError::Malformed {
                        module: module.into(),
                        offset: at as u64,
                        reason: "bytes after the end of the component".into(),
                    });
                }
            },
        }
    }
}

fn function(
    module: &str,
    function: FuncToValidate<ValidatorResources>,
    body: &FunctionBody<'_>,
    allocations: FuncValidatorAllocations,
) -> Result<FuncValidatorAllocations, ComponentError> {
    let refuse = |error: &BinaryReaderError| malformed(module, error);
    let features = function.features;
    let mut validator = function.into_validator(allocations);
    let mut reader = body.get_binary_reader();
    reader.set_features(features);
    validator.read_locals(&mut reader).map_err(|e| refuse(&e))?;
    let locals = u64::from(validator.len_locals());
    at_most(module, "the locals of one of its functions", locals, LOCALS)?;
    let mut operators = wasmparser::OperatorsReader::new(reader);
    while !operators.eof() {
        let offset = operators.original_position();
        let operator = operators.read().map_err(|e| refuse(&e))?;
        if let Operator::BrTable { targets } = &operator {
            let targets = u64::from(targets.len());
            at_most(
                module,
                "the targets of one of its br_table",
                targets,
                TARGETS,
            )?;
        }
        validator.op(offset, &operator).map_err(|e| refuse(&e))?;
        let blocks = u64::from(validator.control_stack_height());
        at_most(module, "the depth of its blocks", blocks, BLOCKS)?;
    }
    operators.finish().map_err(|e| refuse(&e))?;
    Ok(validator.into_allocations())
}
