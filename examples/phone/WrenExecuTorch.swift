// Written from ExecuTorch's API: never compiled, never run on a phone. docs/export.md describes the files and the loop around it.

import ExecuTorch
import Foundation

struct Card: Decodable {
  struct Value: Decodable { let name: String; let shape: [Int]; let start: Float? }
  struct Method: Decodable { let inputs: [Value]; let outputs: [Value] }
  struct T3: Decodable {
    let capacity, prefill_tokens, speech_offset, speaker_id, start_text, stop_text, start_speech, stop_speech: Int
  }
  let programs: [String: [String: Method]]
  let t3: T3
}

final class Wren {
  let card: Card
  let t3, flow, vocoder: Module

  init(folder: URL) throws {
    card = try JSONDecoder().decode(Card.self, from: Data(contentsOf: folder.appendingPathComponent("export.json")))
    func open(_ file: String) -> Module {
      Module(filePath: folder.appendingPathComponent(file).path, loadMode: .mmap)
    }
    (t3, flow, vocoder) = (open("t3.pte"), open("flow.pte"), open("vocoder.pte"))
  }

  /// The caches of an utterance's start: the inputs of a method that have a start value.
  func start(_ file: String, _ method: String) -> [any ValueConvertible] {
    card.programs[file]![method]!.inputs.filter { $0.start != nil }.map { value in
      Tensor<Float>.full(shape: value.shape, scalar: value.start!)
    }
  }

  /// Text ids to speech tokens. `choose` samples from the logits; `emit` gets each token.
  func generate(_ textIds: [Int], speaker: [Float], limit: Int, choose: ([Float]) -> Int, emit: (Int) throws -> Void) throws {
    let c = card.t3
    let prompt = [c.speaker_id, c.start_text] + textIds + [c.stop_text, c.speech_offset + c.start_speech]
    let caches = start("t3", "step").map { $0 as! Tensor<Float> }
    let voice = Tensor<Float>(speaker, shape: [1, speaker.count])
    var position = 0

    /// Run a method over `ids`, the first `count` of which are real, and store its keys and values.
    func run(_ method: String, _ ids: [Int], count: Int) throws -> [Float] {
      let inputs: [any ValueConvertible] = [
        Tensor<Int>(ids, shape: [1, ids.count]), Tensor<Int>([position]), Tensor<Int>([count - 1]), voice,
      ]
      let outputs = try t3.execute(method, inputs + caches)
      for (cache, value) in zip(caches, outputs.dropFirst()) {
        let new: Tensor<Float> = value.tensor()!             // (heads, ids, head width)
        let (heads, width) = (new.shape[0], new.shape[2])
        new.withUnsafeBytes { source in
          cache.withUnsafeMutableBytes { target in
            for head in 0..<heads {
              for n in 0..<(count * width) {
                target[(head * c.capacity + position) * width + n] = source[head * ids.count * width + n]
              }
            }
          }
        }
      }
      position += count
      let logits: Tensor<Float> = outputs[0].tensor()!
      return logits.scalars()
    }

    var logits: [Float] = []
    for first in stride(from: 0, to: prompt.count, by: c.prefill_tokens) {
      let part = Array(prompt[first..<min(first + c.prefill_tokens, prompt.count)])
      let padding = [Int](repeating: 0, count: c.prefill_tokens - part.count)
      logits = try run("prefill", part + padding, count: part.count)
    }
    for _ in 0..<min(limit, c.capacity - prompt.count) {
      let token = choose(logits)
      if token == c.stop_speech { return }
      try emit(token)
      logits = try run("step", [c.speech_offset + token], count: 1)
    }
  }

  /// One flow block: 15 ids, of which `known` are in the utterance, to 24 frames of mel.
  /// `caches` are those of `encode` and of the two steps; they become the next block's.
  func mel(_ ids: [Int], known: Int, position: Int, speaker: [Float], caches: inout [[any ValueConvertible]]) throws -> [Float] {
    let (known, position) = (Tensor<Int>([known]), Tensor<Int>([position]))
    let voice = Tensor<Float>(speaker, shape: [1, 1, speaker.count])
    let inputs: [any ValueConvertible] = [Tensor<Int>(ids, shape: [1, ids.count]), known, position, voice]
    let conditioning: Tensor<Float> = try run(flow, "encode", inputs, &caches[0])[0].copy()
    var x = Tensor<Float>.zeros(shape: [1, conditioning.shape[1], speaker.count])
    var mel: [Float] = []
    for step in 0..<2 {
      let outputs = try run(flow, "step", [x, conditioning, known, position, Tensor<Int>([step])], &caches[1 + step], results: 2)
      (x, mel) = (outputs[0].copy(), outputs[1].scalars())
    }
    return mel
  }

  /// One vocoder block: 24 frames of mel, as `mel` returns them, and normal noise for each sample, to 11520 samples.
  func samples(_ mel: [Float], noise: [Float], caches: inout [any ValueConvertible]) throws -> [Float] {
    let inputs: [any ValueConvertible] = [
      Tensor<Float>(mel, shape: [1, 24, 80]), Tensor<Float>(noise, shape: [1, noise.count]),
    ]
    return try run(vocoder, "forward", inputs, &caches)[0].scalars()
  }

  /// Run a method, keep its last outputs as the next caches, and return the first `results` of them.
  private func run(
    _ module: Module, _ method: String, _ inputs: [any ValueConvertible],
    _ caches: inout [any ValueConvertible], results: Int = 1
  ) throws -> [Tensor<Float>] {
    let outputs = try module.execute(method, inputs + caches)
    caches = outputs.dropFirst(results).map { value in
      let cache: Tensor<Float> = value.tensor()!
      return cache.copy()
    }
    return outputs.prefix(results).map { $0.tensor()! }
  }
}
