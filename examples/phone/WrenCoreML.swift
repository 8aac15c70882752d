// Written from Core ML's API: never compiled, never run on a phone. docs/export.md describes the files and the loop around it.

import CoreML
import Foundation

struct Card: Decodable {
  struct Value: Decodable { let name, dtype: String; let shape: [Int]; let start: Float? }
  struct Function: Decodable { let inputs: [Value] }
  struct T3: Decodable {
    let capacity, prefill_tokens, speech_offset, speaker_id, start_text, stop_text, start_speech, stop_speech: Int
  }
  struct Table: Decodable { let file: String; let shape: [Int] }
  let programs: [String: [String: Function]]
  let tables: [String: Table]
  let t3: T3
}

typealias Values = [String: MLFeatureValue]

func array<Scalar: MLShapedArrayScalar>(_ scalars: [Scalar], _ shape: [Int]) -> MLFeatureValue {
  MLFeatureValue(shapedArray: MLShapedArray(scalars: scalars, shape: shape))
}

final class Wren {
  let card: Card
  let tables: [String: Data]
  let prefill, step, flow, vocoder: MLModel

  init(folder: URL) async throws {
    let card = try JSONDecoder().decode(Card.self, from: Data(contentsOf: folder.appending(path: "export.json")))
    func open(_ file: String, _ function: String? = nil) async throws -> MLModel {
      // An app compiles its packages when it is built, or once, and keeps the result.
      let compiled = try await MLModel.compileModel(at: folder.appending(path: "\(file).mlpackage"))
      let configuration = MLModelConfiguration()
      configuration.functionName = function
      return try await MLModel.load(contentsOf: compiled, configuration: configuration)
    }
    self.card = card
    tables = try card.tables.mapValues { try Data(contentsOf: folder.appending(path: $0.file), options: .alwaysMapped) }
    prefill = try await open("t3", "prefill")
    step = try await open("t3", "step")
    flow = try await open("flow")
    vocoder = try await open("vocoder")
  }

  /// Rows of an embedding table; `speaker` takes the place of the row `speaker_id`.
  func rows(_ table: String, _ ids: [Int], speaker: [Float] = []) -> MLFeatureValue {
    let width = card.tables[table]!.shape[1]
    let scalars = tables[table]!.withUnsafeBytes { bytes in
      let values = bytes.bindMemory(to: Float16.self)
      return ids.flatMap { id in
        table == "t3" && id == card.t3.speaker_id ? speaker.map { Float16($0) } : Array(values[id * width..<(id + 1) * width])
      }
    }
    return array(scalars, [1, ids.count, width])
  }

  /// The caches of an utterance's start.
  func start(_ file: String) -> Values {
    let inputs = card.programs[file]!["main"]!.inputs.filter { $0.start != nil }
    return Dictionary(uniqueKeysWithValues: inputs.map { value in
      let count = value.shape.reduce(1, *)
      return (value.name, value.dtype == "float16"
        ? array([Float16](repeating: Float16(value.start!), count: count), value.shape)
        : array([Float](repeating: value.start!, count: count), value.shape))
    })
  }

  /// Text ids to speech tokens. `choose` samples from the logits; `emit` gets each token.
  func generate(_ textIds: [Int], speaker: [Float], limit: Int, choose: ([Float]) -> Int, emit: (Int) throws -> Void) async throws {
    let c = card.t3
    let prompt = [c.speaker_id, c.start_text] + textIds + [c.stop_text, c.speech_offset + c.start_speech]
    let state = step.makeState()                              // the KV cache, of both functions
    func read(_ model: MLModel, _ ids: [Int], _ position: Int, last: Int? = nil) async throws -> [Float] {
      var inputs: Values = ["x": rows("t3", ids, speaker: speaker), "position": array([Int32(position)], [1])]
      if let last { inputs["last"] = array([Int32(last)], [1]) }
      let outputs = try await model.prediction(from: MLDictionaryFeatureProvider(dictionary: inputs), using: state)
      return outputs.featureValue(for: "logits")!.shapedArrayValue(of: Float.self)!.scalars
    }

    var logits: [Float] = []
    for first in stride(from: 0, to: prompt.count, by: c.prefill_tokens) {
      let part = Array(prompt[first..<min(first + c.prefill_tokens, prompt.count)])
      let padding = [Int](repeating: 0, count: c.prefill_tokens - part.count)
      logits = try await read(prefill, part + padding, first, last: part.count - 1)
    }
    for number in 0..<min(limit, c.capacity - prompt.count) {
      let token = choose(logits)
      if token == c.stop_speech { return }
      try emit(token)
      logits = try await read(step, [c.speech_offset + token], prompt.count + number)
    }
  }

  /// One flow block: 15 ids, of which `known` are in the utterance, to 24 frames of mel.
  func mel(_ ids: [Int], known: Int, position: Int, speaker: [Float], caches: inout Values) async throws -> [Float] {
    let inputs: Values = [
      "x": rows("flow", ids), "known": array([Int32(known)], [1]), "position": array([Int32(position)], [1]),
      "speaker": array(speaker, [1, 1, speaker.count]),
    ]
    return try await run(flow, inputs, "mel", &caches)
  }

  /// One vocoder block: 24 frames of mel, as `mel` returns them, and normal noise for each sample, to 11520 samples.
  func samples(_ mel: [Float], noise: [Float], caches: inout Values) async throws -> [Float] {
    let inputs: Values = ["mel": array(mel, [1, 24, 80]), "noise": array(noise, [1, noise.count])]
    return try await run(vocoder, inputs, "samples", &caches)
  }

  /// Run a block, keep its caches for the next one, and return one of its outputs.
  private func run(_ model: MLModel, _ inputs: Values, _ output: String, _ caches: inout Values) async throws -> [Float] {
    let provider = try MLDictionaryFeatureProvider(dictionary: inputs.merging(caches) { own, _ in own })
    let outputs = try await model.prediction(from: provider)
    for name in caches.keys {
      caches[name] = outputs.featureValue(for: name.replacingOccurrences(of: "cache_", with: "next_"))!
    }
    return outputs.featureValue(for: output)!.shapedArrayValue(of: Float.self)!.scalars
  }
}
