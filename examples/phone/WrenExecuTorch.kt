// Written from ExecuTorch's API: never compiled, never run on a phone. docs/export.md describes the files and the loop around it.

import java.io.File
import java.nio.FloatBuffer
import org.json.JSONArray
import org.json.JSONObject
import org.pytorch.executorch.EValue
import org.pytorch.executorch.Module
import org.pytorch.executorch.Tensor

class Wren(folder: File) {
    private val card = JSONObject(File(folder, "export.json").readText())
    private val sizes = card.getJSONObject("t3")
    private val t3 = Module.load(File(folder, "t3.pte").path, Module.LOAD_MODE_MMAP)
    private val flow = Module.load(File(folder, "flow.pte").path, Module.LOAD_MODE_MMAP)
    private val vocoder = Module.load(File(folder, "vocoder.pte").path, Module.LOAD_MODE_MMAP)

    /** The caches of an utterance's start: the inputs of a method that have a start value. */
    fun start(file: String, method: String): List<Tensor> {
        val inputs = card.getJSONObject("programs").getJSONObject(file).getJSONObject(method).getJSONArray("inputs")
        return (0 until inputs.length()).map { inputs.getJSONObject(it) }.filter { it.has("start") }.map { value ->
            val shape = longs(value.getJSONArray("shape"))
            val count = shape.fold(1L, Long::times).toInt()
            Tensor.fromBlob(FloatArray(count) { value.getDouble("start").toFloat() }, shape)
        }
    }

    /** Text ids to speech tokens. `choose` samples from the logits; `emit` gets each token. */
    fun generate(textIds: List<Long>, speaker: FloatArray, limit: Int, choose: (FloatArray) -> Int, emit: (Int) -> Unit) {
        val capacity = sizes.getInt("capacity")
        val part = sizes.getInt("prefill_tokens")
        val offset = sizes.getLong("speech_offset")
        val prompt = listOf(sizes.getLong("speaker_id"), sizes.getLong("start_text")) + textIds +
            listOf(sizes.getLong("stop_text"), offset + sizes.getLong("start_speech"))
        val voice = Tensor.fromBlob(speaker, longArrayOf(1, speaker.size.toLong()))
        // Direct buffers are not copied: what is written into them is read by the next call.
        val shapes = start("t3", "step").map { it.shape() }
        val buffers: List<FloatBuffer> = shapes.map { Tensor.allocateFloatBuffer(Tensor.numel(it).toInt()) }
        val caches = buffers.zip(shapes) { buffer, shape -> Tensor.fromBlob(buffer, shape) }
        var position = 0

        /** Run a method over `ids`, the first `count` of which are real, and store its keys and values. */
        fun run(method: String, ids: LongArray, count: Int): FloatArray {
            val inputs = listOf(
                Tensor.fromBlob(ids, longArrayOf(1, ids.size.toLong())),
                Tensor.fromBlob(longArrayOf(position.toLong()), longArrayOf(1)),
                Tensor.fromBlob(longArrayOf(count - 1L), longArrayOf(1)),
                voice,
            )
            val outputs = t3.execute(method, *values(inputs + caches))
            buffers.forEachIndexed { number, buffer ->
                val new = outputs[number + 1].toTensor()          // (heads, ids, head width)
                val width = new.shape()[2].toInt()
                val data = new.dataAsFloatArray
                for (head in 0 until new.shape()[0].toInt()) {
                    buffer.position((head * capacity + position) * width)
                    buffer.put(data, head * ids.size * width, count * width)
                }
                buffer.rewind()
            }
            position += count
            return outputs[0].toTensor().dataAsFloatArray
        }

        var logits = FloatArray(0)
        for (ids in prompt.chunked(part)) logits = run("prefill", ids.toLongArray().copyOf(part), ids.size)
        repeat(minOf(limit, capacity - prompt.size)) {
            val token = choose(logits)
            if (token == sizes.getInt("stop_speech")) return
            emit(token)
            logits = run("step", longArrayOf(offset + token), 1)
        }
    }

    /**
     * One flow block: 15 ids, of which `known` are in the utterance, to 24 frames of mel.
     * `caches` are those of `encode` and of the two steps; they become the next block's.
     */
    fun mel(ids: LongArray, known: Int, position: Int, speaker: FloatArray, caches: Array<List<Tensor>>): FloatArray {
        fun one(value: Int) = Tensor.fromBlob(longArrayOf(value.toLong()), longArrayOf(1))
        val tokens = Tensor.fromBlob(ids, longArrayOf(1, ids.size.toLong()))
        val voice = Tensor.fromBlob(speaker, longArrayOf(1, 1, speaker.size.toLong()))
        val (encoded, next) = run(flow, "encode", listOf(tokens, one(known), one(position), voice), caches[0])
        caches[0] = next
        var x = Tensor.fromBlob(FloatArray(24 * 80), longArrayOf(1, 24, 80))
        var mel = FloatArray(0)
        for (step in 0 until 2) {
            val inputs = listOf(x, encoded[0], one(known), one(position), one(step))
            val (outputs, after) = run(flow, "step", inputs, caches[1 + step], results = 2)
            caches[1 + step] = after
            x = outputs[0]
            mel = outputs[1].dataAsFloatArray
        }
        return mel
    }

    /** One vocoder block: 24 frames of mel, as `mel` returns them, and normal noise for each sample, to 11520 samples; and the next caches. */
    fun samples(mel: FloatArray, noise: FloatArray, caches: List<Tensor>): Pair<FloatArray, List<Tensor>> {
        val inputs = listOf(
            Tensor.fromBlob(mel, longArrayOf(1, 24, 80)),
            Tensor.fromBlob(noise, longArrayOf(1, noise.size.toLong())),
        )
        val (outputs, next) = run(vocoder, "forward", inputs, caches)
        return outputs[0].dataAsFloatArray to next
    }

    /** Run a method; return copies of its first `results` outputs and, as the next caches, of the others. */
    private fun run(module: Module, method: String, inputs: List<Tensor>, caches: List<Tensor>, results: Int = 1): Pair<List<Tensor>, List<Tensor>> {
        val outputs = module.execute(method, *values(inputs + caches)).map { it.toTensor() }.map {
            Tensor.fromBlob(it.dataAsFloatArray, it.shape())
        }
        return outputs.take(results) to outputs.drop(results)
    }

    private fun values(tensors: List<Tensor>) = tensors.map { EValue.from(it) }.toTypedArray()

    private fun longs(array: JSONArray) = LongArray(array.length()) { array.getLong(it) }
}
