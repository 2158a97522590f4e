// Prefill and decode of llama.cpp through node-llama-cpp's prebuilt library:
//   npm install node-llama-cpp && node llama_cpp.mjs MODEL.gguf THREADS
import {getLlama} from "node-llama-cpp";

const [path, threads] = [process.argv[2], Number(process.argv[3] ?? 2)];
const llama = await getLlama({gpu: false, build: "never", logLevel: "error"});
const model = await llama.loadModel({modelPath: path});
const context = await model.createContext({contextSize: 2048, threads, batchSize: 512});
const ids = Array.from({length: 512}, (_, i) => 100 + (i * 7919) % 40000);
for (let round = 0; round < 4; round++) {
    const sequence = context.getSequence();
    const begin = performance.now();
    await sequence.evaluateWithoutGeneratingNewTokens(ids);
    const prefilled = performance.now();
    let tokens = 0;
    for await (const _ of sequence.evaluate([5], {temperature: 0})) {
        if (++tokens === 128) break;
    }
    const end = performance.now();
    const rate = (count, ms) => (count * 1000 / ms).toFixed(1);
    console.log(`prefill 512: ${rate(512, prefilled - begin)} tok/s, decode 128: ${rate(tokens, end - prefilled)} tok/s`);
    sequence.dispose();
}
process.exit(0);
