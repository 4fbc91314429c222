// How vLLM's model classes differ in what their Python keeps alive during an eager forward pass.
// The sizes are the model's; only lifetimes are here. Sources: vLLM's model files of the family,
// checked against the largest live tensors of recorded startups.
#pragma once

#include <cstdint>
#include <string_view>

#include "sim/core/version.hpp"

namespace oomcast::vllm {

// How a layer joins its branches to the residual stream.
enum class Residual : std::uint8_t {
  kFused,     // the norm adds the residual (Llama, Qwen, DeepSeek …)
  kSandwich,  // norms before and after each branch (Gemma 2 and 3)
  kPostNorm,  // norm after each branch, plain additions (OLMo 2 and 3)
  kScaled,    // norm before, multiplied additions (Granite, MiniCPM)
  kNamed,     // plain norms and additions, each result under a name of its own (ChatGLM)
  kStreams,   // several streams, mixed before and after each branch (DeepSeek V4)
};

struct LayerStyle {
  Residual residual = Residual::kFused;
  // The fused norm writes into its inputs; else both results are new tensors.
  bool norms_in_place = true;
  // Norms are compiled one by one even where the model is not (GemmaRMSNorm up to 0.19).
  bool compiles_norms = false;
  // The MLP's variable for gate_up lives to the end of its function.
  bool mlp_keeps_gate_up = true;
  // Layers that add by themselves return what they added to as well: the caller names it.
  bool returns_residual = false;
  // The first layer copies the embeddings into the residual.
  bool clones_first_residual = false;
  // The layer makes the buffer its attention writes into, and names it to its end.
  bool makes_attention_output = false;
  // The attention call's keyword arguments live to the end of the layer.
  bool keeps_attention_input = false;
  // Shared experts run inside the experts' call, which is never compiled.
  bool shared_inside_experts = false;
  // The experts' call runs the router itself where it has shared experts beside.
  bool routes_inside_experts = false;
  // The kernel of multimodal ropes takes copies of queries and keys that lie in one tensor.
  bool rotates_dense_rows = false;
  // Norms of queries and keys and the split off gate are one kernel; the product with the gate has
  // its sigmoid beside it.
  bool fuses_query_gate = false;
  // A delta net's projection alternates its parts by head: they are copied into order (Qwen3-Next).
  bool interleaves_states = false;
  // The layer names what the delta net wrote until the output projection is done; else its norm
  // takes the name.
  bool keeps_recurrent_output = false;
  // The copy of the gate that the delta net's norm reads lives as long.
  bool keeps_gate_copy = true;
};

LayerStyle layer_style(std::string_view family, const Version& version);

}  // namespace oomcast::vllm
