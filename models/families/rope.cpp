// Rope parameters, and the cos/sin table an engine keeps for them.
//
// Rows of the table (vLLM rotary_embedding/*): default, llama3, ntk: max_position; linear, dynamic
// with factor: max_position x factor; yarn, deepseek_yarn: original_max_position x factor;
// longrope: original_max_position + max_position (short and long one after the other); multimodal
// ropes: 4 times as many, as positions of a video run ahead of its tokens.
#include <cmath>

#include "models/families/family.hpp"

namespace oomcast::models {
namespace {

// The dict that holds the parameters for one layer type: rope_parameters by layer type,
// rope_parameters flat, or rope_scaling.
const Json* parameters_of(const Config& config, const std::string& layer_type) {
  const Json* parameters = config.find("rope_parameters");
  if (parameters != nullptr && parameters->is_object()) {
    if (!layer_type.empty() && parameters->contains(layer_type)) {
      return &parameters->at(layer_type);
    }
    return parameters;
  }
  return config.find("rope_scaling");
}

std::int64_t scaled_rows(double positions, double factor) {
  return static_cast<std::int64_t>(std::floor(positions * factor));
}

void set_table_rows(RopeSpec& rope, bool alpha) {
  const auto max_position = static_cast<double>(rope.max_position);
  const auto original = static_cast<double>(
      rope.original_max_position > 0 ? rope.original_max_position : rope.max_position);
  if (rope.type == "linear" || (rope.type == "dynamic" && !alpha)) {
    rope.table_rows = scaled_rows(max_position, rope.factor);
  } else if (rope.type == "yarn" || rope.type == "deepseek_yarn") {
    rope.table_rows = scaled_rows(original, rope.factor);
  } else if (rope.type == "longrope") {
    rope.table_rows = static_cast<std::int64_t>(original) + rope.max_position;
  } else {
    rope.table_rows = rope.max_position;
  }
  if (rope.multimodal) {
    rope.table_rows *= kMultimodalRopeFactor;
  }
}

}  // namespace

int add_rope(ModelSpec& spec, const RopeSpec& rope) {
  for (std::size_t i = 0; i < spec.ropes.size(); ++i) {
    if (spec.ropes[i] == rope) {
      return static_cast<int>(i);
    }
  }
  spec.ropes.push_back(rope);
  return static_cast<int>(spec.ropes.size() - 1);
}

int add_rope(const Config& config, ModelSpec& spec, const RopeRules& rules) {
  RopeSpec rope;
  rope.max_position =
      config.class_default({"max_position_embeddings", "seq_length", "max_sequence_length",
                            "model_max_length", "n_positions", "max_seq_len"},
                           rules.default_max_position, {1, kMostPosition});
  rope.theta = config.number(rules.theta_key).value_or(rules.theta_default);
  double partial = config.number("partial_rotary_factor")
                       .value_or(config.number("rotary_pct").value_or(rules.partial_default));
  bool alpha = false;
  const Json* parameters = parameters_of(config, rules.layer_type);
  if (parameters != nullptr && !parameters->is_object()) {
    config.complain(config.has("rope_parameters") ? "rope_parameters" : "rope_scaling",
                    "a JSON object or null");
  } else if (parameters != nullptr) {
    const JsonView view(*parameters, config.source(), "rope_scaling", config.problems());
    if (!rules.theta_from_key) {
      rope.theta = view.number("rope_theta").value_or(rope.theta);
    }
    partial = view.number("partial_rotary_factor").value_or(partial);
    if (rules.scaled) {
      rope.type = view.text("rope_type").value_or(view.text("type").value_or("default"));
      rope.factor = view.number("factor").value_or(1.0);
      const Range positions{1, kMostPosition};
      rope.original_max_position =
          view.integer("original_max_position_embeddings", positions.low, positions.high)
              .value_or(config.plain({"original_max_position_embeddings"}, 0, positions));
      rope.multimodal = view.has("mrope_section");
      rope.interleaved = rope.multimodal && view.boolean("mrope_interleaved").value_or(false);
      alpha = view.has("alpha");
    }
  }
  if (rope.type == "su") {
    rope.type = "longrope";
  } else if (rope.type == "mrope") {
    rope.type = "default";
  }
  const double most_rows = static_cast<double>(kMostPosition);
  const double base = static_cast<double>(std::max(rope.max_position, rope.original_max_position));
  if (!(rope.factor > 0.0) || rope.factor * base > most_rows) {
    config.complain("rope_scaling", "a factor above 0 that keeps positions below 2^30");
    rope.factor = 1.0;
  }
  if (!(partial > 0.0) || partial > 1.0) {
    config.complain("partial_rotary_factor", "a number above 0 and at most 1");
    partial = 1.0;
  }
  rope.rotary_dim = std::max<std::int64_t>(
      1, static_cast<std::int64_t>(static_cast<double>(rules.head_dim) * partial));
  if (rules.rotary_dim) {
    rope.rotary_dim = *rules.rotary_dim;
  }
  rope.fp32_table = rules.fp32_table;
  rope.deepseek_yarn = rules.deepseek_yarn && rope.type == "yarn";
  set_table_rows(rope, alpha);
  return add_rope(spec, rope);
}

}  // namespace oomcast::models
