#include "models/families/mamba.hpp"

namespace oomcast::models {
namespace {

void add_split_vector(std::vector<TensorSpec>& tensors, std::string_view name, Extent rows,
                      Element element = Element::kModel) {
  TensorSpec vector;
  vector.name = name;
  vector.rows = {rows};
  vector.element = element;
  tensors.push_back(std::move(vector));
}

}  // namespace

void add_mamba2(const ModelSpec& spec, std::vector<TensorSpec>& tensors, AttentionSpec& attention,
                const Mamba2Sizes& sizes) {
  attention.kind = AttentionKind::kMamba2;
  attention.heads = sizes.heads;
  attention.state = {.inner = sizes.heads * sizes.head_dim,
                     .groups = sizes.groups,
                     .group_size = 2 * sizes.state,
                     .kernel = sizes.kernel,
                     .heads = sizes.heads,
                     .head_rows = sizes.head_dim,
                     .head_columns = sizes.state,
                     .recurrent_dtype = sizes.state_dtype};
  const Extent inner{sizes.heads, sizes.head_dim, Split::kEven};
  // Groups are copied to every rank when there are fewer than ranks.
  const Extent groups{sizes.groups, sizes.state, Split::kKvHeads};
  const Extent heads{sizes.heads, 1, Split::kEven};
  add_linear(tensors, {.weight = "mixer.conv1d.weight",
                       .bias = "mixer.conv1d.bias",
                       .rows = {inner, groups, groups},
                       .columns = {.size = sizes.kernel},
                       .has_bias = sizes.conv_bias,
                       .quantisable = false});
  add_linear(tensors, {.weight = "mixer.in_proj.weight",
                       .bias = "mixer.in_proj.bias",
                       .rows = {inner, inner, groups, groups, heads},
                       .columns = {.size = spec.hidden},
                       .has_bias = sizes.projection_bias});
  add_split_vector(tensors, "mixer.A", heads, Element::kFloat32);
  add_split_vector(tensors, "mixer.D", heads);
  add_split_vector(tensors, "mixer.dt_bias", heads);
  add_linear(tensors, {.weight = "mixer.out_proj.weight",
                       .bias = "mixer.out_proj.bias",
                       .rows = {{.size = spec.hidden}},
                       .columns = inner,
                       .has_bias = sizes.projection_bias});
  if (sizes.norm) {
    add_split_vector(tensors, "mixer.norm.weight", inner);
  }
}

void add_mamba1(const ModelSpec& spec, std::vector<TensorSpec>& tensors, AttentionSpec& attention,
                const Mamba1Sizes& sizes) {
  attention.kind = AttentionKind::kMamba1;
  attention.heads = sizes.inner;
  attention.state = {.inner = sizes.inner,
                     .kernel = sizes.kernel,
                     .heads = sizes.inner,
                     .head_rows = 1,
                     .head_columns = sizes.state};
  const Extent inner{sizes.inner, 1, Split::kEven};
  add_linear(tensors, {.weight = "mixer.conv1d.weight",
                       .bias = "mixer.conv1d.bias",
                       .rows = {inner},
                       .columns = {.size = sizes.kernel},
                       .has_bias = sizes.conv_bias,
                       .quantisable = false});
  add_linear(tensors, {.weight = "mixer.in_proj.weight",
                       .bias = "mixer.in_proj.bias",
                       .rows = {inner, inner},
                       .columns = {.size = spec.hidden},
                       .has_bias = sizes.projection_bias});
  add_linear(tensors, {.weight = "mixer.x_proj.weight",
                       .bias = {},
                       .rows = {{.size = sizes.step_rank + 2 * sizes.state}},
                       .columns = inner});
  add_linear(tensors, {.weight = "mixer.dt_proj.weight",
                       .bias = "mixer.dt_proj.bias",
                       .rows = {inner},
                       .columns = {.size = sizes.step_rank},
                       .has_bias = true});
  add_split_vector(tensors, "mixer.A", {sizes.inner, sizes.state, Split::kEven}, Element::kFloat32);
  add_split_vector(tensors, "mixer.D", inner);
  add_linear(tensors, {.weight = "mixer.out_proj.weight",
                       .bias = "mixer.out_proj.bias",
                       .rows = {{.size = spec.hidden}},
                       .columns = inner,
                       .has_bias = sizes.projection_bias});
  add_norm(tensors, "mixer.dt_layernorm.weight", sizes.step_rank);
  add_norm(tensors, "mixer.b_layernorm.weight", sizes.state);
  add_norm(tensors, "mixer.c_layernorm.weight", sizes.state);
}

std::optional<DType> read_state_dtype(const Config& config) {
  for (const char* const key : {"mamba_ssm_cache_dtype", "mamba_ssm_dtype"}) {
    if (const auto text = config.text(key)) {
      const auto dtype = parse_dtype(*text);
      if (!dtype) {
        config.complain(key, "a dtype, e.g. \"float32\"");
      }
      return dtype;
    }
  }
  return std::nullopt;
}

}  // namespace oomcast::models
