#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| guesthouse_fuzz::chat_parsers(data));
