#include "sim/engines/sglang/repack.hpp"

#include <algorithm>
#include <string>
#include <string_view>

namespace oomcast::sglang {
namespace {

using models::TensorBytes;

// A linear layer's quantised weight; its companions have the same name.
bool quantised_linear(const std::vector<LoadedTensor>& tensors, std::size_t at) {
  const TensorBytes& weight = *tensors[at].source;
  return at + 1 < tensors.size() && weight.suffix.empty() &&
         weight.name.find("experts.w") == std::string_view::npos &&
         tensors[at + 1].source->name == weight.name && !tensors[at + 1].source->suffix.empty();
}

// ---- FP8 blocks, whose scales DeepGEMM takes as powers of two on Blackwell

bool repacks_scales(const Deployment& deployment) {
  const auto& quantization = deployment.model->quantization;
  if (!quantization || quantization->block_rows == 0 || deployment.gpu.compute_major != 10) {
    return false;
  }
  switch (deployment.rules.repacked_scales) {
    case RepackedScales::kNone:
      return false;
    case RepackedScales::kDeepseek:
      return deployment.model->architecture.starts_with("Deepseek");
    case RepackedScales::kLinear:
      return true;
  }
  return false;
}

// Dequantised and quantised anew; every row then has its own scales, a byte for each 128 columns
// (requant_weight_ue8m0, block_quant_dequant, per_block_cast_to_fp8).
void requantise(LoadTape& tape, LoadedTensor& weight, LoadedTensor& scale) {
  constexpr std::int64_t kBlock = 128;
  const Bytes bytes = weight.source->bytes;
  const Bytes scales{bytes.count() / kBlock};
  const auto temporary = [&](Bytes size) { return tape.add(size, Leaf::kRuntimeIntermediates); };
  const std::uint32_t by_row = temporary(scales * 4);
  const std::uint32_t factors = temporary(bytes * 4);
  tape.free(by_row);
  const std::uint32_t wide = temporary(bytes * 4);
  const std::uint32_t product = temporary(bytes * 4);
  tape.free(wide);
  const std::uint32_t plain = temporary(bytes * 2);
  tape.free(product);
  tape.free(factors);
  const std::uint32_t padded = temporary(bytes * 2);
  const std::uint32_t absolute = temporary(bytes * 2);
  const std::uint32_t wide_absolute = temporary(bytes * 4);
  tape.free(absolute);
  tape.free(wide_absolute);
  const std::uint32_t scaled = temporary(bytes * 4);
  const std::uint32_t new_weight = tape.add(bytes, Leaf::kModelWeights);
  tape.free(scaled);
  tape.free(padded);
  const std::uint32_t spread = temporary(scales * 4);
  const std::uint32_t new_scale = tape.add(scales, Leaf::kModelScales);
  tape.free(spread);
  tape.free(plain);
  tape.free(weight.tensor);
  tape.free(scale.tensor);
  weight.tensor = new_weight;
  scale.tensor = new_scale;
}

// ---- 4- and 8-bit integers in groups, in Marlin's layout

bool marlin(const Deployment& deployment) {
  const auto& quantization = deployment.model->quantization;
  constexpr int kAmpere = 8;
  return quantization && deployment.gpu.compute_major >= kAmpere &&
         (quantization->method == "awq" || quantization->method == "gptq");
}

// ---- NVFP4 in Marlin's layout, up to Hopper (quantization/marlin_utils_fp4.py)

bool fp4_marlin(const Deployment& deployment) {
  constexpr int kHopper = 9;
  return deployment.rules.unread_scales && deployment.gpu.compute_major <= kHopper &&
         deployment.model->quantization && deployment.model->quantization->method == "modelopt";
}

// Its matrix or its scales, by layer and name.
LoadedTensor* part_of(std::vector<LoadedTensor>& tensors, int layer, std::string_view name,
                      models::DType dtype) {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const LoadedTensor& one) {
    return one.source->layer == layer && one.source->name == name && one.source->dtype == dtype &&
           one.source->suffix.empty() == (dtype == models::DType::kFloat4);
  });
  return found == tensors.end() ? nullptr : &*found;
}

class Fp4Marlin {
 public:
  explicit Fp4Marlin(LoadTape& tape) : tape_(tape) {}

  void linear(LoadedTensor& weight, LoadedTensor& scale) {
    const std::uint32_t turned = temporary(weight.bytes);
    replace(weight, tape_.add(weight.bytes, Leaf::kModelWeights));
    const std::uint32_t narrow = temporary(scale.bytes);
    const std::uint32_t wide = temporary(scale.bytes * 2);
    tape_.free(narrow);
    const std::uint32_t permuted = temporary(scale.bytes * 2);
    tape_.free(wide);
    const std::uint32_t made = processed(scale.bytes);
    tape_.free(permuted);
    replace(scale, made);
    tape_.free(turned);
  }

  // Padded ones are copies, and the originals go one by one; else they are held to the end.
  struct Experts {
    LoadedTensor* up_weight = nullptr;
    LoadedTensor* down_weight = nullptr;
    LoadedTensor* up_scale = nullptr;
    LoadedTensor* down_scale = nullptr;
    std::int64_t count = 0;
    std::int64_t width = 0;
    std::int64_t padded = 0;
  };

  void experts(const Experts& experts) {
    const bool pads = experts.padded != experts.width;
    std::vector<std::uint32_t> held;
    const auto size = [&](const LoadedTensor& one) {
      return Bytes{one.bytes.count() / experts.width * experts.padded};
    };
    if (pads) {
      for (const LoadedTensor* one :
           {experts.up_weight, experts.up_scale, experts.down_weight, experts.down_scale}) {
        held.push_back(temporary(size(*one)));
      }
    }
    const auto settle = [&](LoadedTensor& one, std::uint32_t made) {
      if (pads) {
        tape_.free(one.tensor);
      } else {
        held.push_back(one.tensor);
      }
      one.tensor = made;
    };
    for (LoadedTensor* one : {experts.up_weight, experts.down_weight}) {
      settle(*one, matrices(size(*one), experts.count));
    }
    for (LoadedTensor* one : {experts.up_scale, experts.down_scale}) {
      const std::uint32_t wide = temporary(size(*one) * 2);
      const std::uint32_t made = scales(size(*one), experts.count);
      tape_.free(wide);
      settle(*one, made);
    }
    for (const std::uint32_t one : held) {
      tape_.free(one);
    }
  }

 private:
  std::uint32_t temporary(Bytes bytes) { return tape_.add(bytes, Leaf::kRuntimeIntermediates); }
  void replace(LoadedTensor& one, std::uint32_t made) {
    tape_.free(one.tensor);
    one.tensor = made;
  }

  // One expert after the other, then all in one tensor.
  std::uint32_t matrices(Bytes all, std::int64_t count) {
    const Bytes one{all.count() / count};
    std::vector<std::uint32_t> made;
    std::optional<std::uint32_t> turned;
    for (std::int64_t i = 0; i < count; ++i) {
      hold(turned, temporary(one));
      made.push_back(temporary(one));
    }
    const std::uint32_t stacked = tape_.add(all, Leaf::kModelWeights);
    free_all(made);
    tape_.free(*turned);
    return stacked;
  }

  std::uint32_t scales(Bytes all, std::int64_t count) {
    const Bytes one{all.count() / count};
    std::vector<std::uint32_t> made;
    std::optional<std::uint32_t> turned;
    std::optional<std::uint32_t> permuted;
    for (std::int64_t i = 0; i < count; ++i) {
      hold(turned, temporary(one * 2));
      hold(permuted, temporary(one * 2));
      made.push_back(processed(one));
    }
    const std::uint32_t stacked = tape_.add(all, Leaf::kModelScales);
    free_all(made);
    tape_.free(*turned);
    tape_.free(*permuted);
    return stacked;
  }

  // Checked for signs, as half, in the kernel's order, scaled, shifted, every second byte.
  std::uint32_t processed(Bytes bytes) {
    tape_.free(temporary(bytes));
    const std::uint32_t half = temporary(bytes * 2);
    const std::uint32_t ordered = temporary(bytes * 2);
    tape_.free(half);
    const std::uint32_t scaled = temporary(bytes * 2);
    const std::uint32_t shifted = temporary(bytes * 2);
    tape_.free(scaled);
    tape_.free(ordered);
    const std::uint32_t made = tape_.add(bytes, Leaf::kModelScales);
    tape_.free(shifted);
    return made;
  }

  void hold(std::optional<std::uint32_t>& name, std::uint32_t tensor) {
    if (name) {
      tape_.free(*name);
    }
    name = tensor;
  }
  void free_all(const std::vector<std::uint32_t>& tensors) {
    for (const std::uint32_t tensor : tensors) {
      tape_.free(tensor);
    }
  }

  LoadTape& tape_;
};

// Of one rank.
std::int64_t expert_width(const Deployment& deployment, int stage, const models::FfnSpec& ffn) {
  const models::ShardPlan plan = deployment.shard(stage);
  return div_ceil(ffn.expert_width, plan.ep > 1 ? 1 : plan.expert_tp.value_or(plan.tp));
}

void repack_fp4(const Deployment& deployment, int stage, LoadTape& tape,
                std::vector<LoadedTensor>& tensors) {
  using models::DType;
  constexpr std::string_view kUp = "experts.w13.weight";
  constexpr std::string_view kDown = "experts.w2.weight";
  constexpr std::int64_t kMarlinColumns = 128;  // of experts without gates
  Fp4Marlin marlin(tape);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorBytes& source = *tensors[i].source;
    if (source.dtype != DType::kFloat4 || !source.suffix.empty() || source.name.ends_with(kDown)) {
      continue;
    }
    LoadedTensor* scale = part_of(tensors, source.layer, source.name, DType::kFloat8);
    if (scale == nullptr) {
      continue;
    }
    if (!source.name.ends_with(kUp)) {
      marlin.linear(tensors[i], *scale);
      continue;
    }
    const models::FfnSpec& ffn = deployment.model->layer(source.layer).ffn;
    const std::string down =
        std::string(source.name.substr(0, source.name.size() - kUp.size())) + std::string(kDown);
    Fp4Marlin::Experts experts;
    experts.up_weight = &tensors[i];
    experts.up_scale = scale;
    experts.down_weight = part_of(tensors, source.layer, down, DType::kFloat4);
    experts.down_scale = part_of(tensors, source.layer, down, DType::kFloat8);
    experts.width = expert_width(deployment, stage, ffn);
    experts.padded = ffn.gated ? experts.width : align_up(experts.width, kMarlinColumns);
    const std::int64_t one =
        experts.width * (ffn.gated ? 2 : 1) * ffn.expert_input(deployment.model->hidden) / 2;
    experts.count = one == 0 ? 0 : tensors[i].bytes.count() / one;
    if (experts.count > 0 && experts.down_weight != nullptr && experts.down_scale != nullptr) {
      marlin.experts(experts);
    }
  }
}

// ---- NVFP4 experts' scales in Blackwell's order

constexpr int kConsumer = 12;  // cards whose experts run through CUTLASS

// Made anew from what was loaded and copied over it; what was made with the tensors goes.
void reorder_scales(LoadTape& tape, std::vector<LoadedTensor>& tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].unused) {
      continue;
    }
    std::vector<std::uint32_t> copies;
    const int layer = tensors[i].source->layer;
    for (; i < tensors.size() && tensors[i].source->layer == layer; ++i) {
      if (tensors[i].unused) {
        const std::uint32_t padded = tape.add(tensors[i].reordered, Leaf::kRuntimeIntermediates);
        copies.push_back(tape.add(tensors[i].reordered, Leaf::kRuntimeIntermediates));
        tape.free(padded);
        tape.free(*tensors[i].unused);
        tensors[i].unused.reset();
      }
    }
    --i;
    for (const std::uint32_t copy : copies) {
      tape.free(copy);
    }
  }
}

void copy_for_marlin(LoadTape& tape, std::vector<LoadedTensor>& tensors, std::size_t first) {
  const std::string_view name = tensors[first].source->name;
  const int layer = tensors[first].source->layer;
  for (std::size_t i = first; i < tensors.size(); ++i) {
    if (tensors[i].source->name != name || tensors[i].source->layer != layer) {
      break;
    }
    if (tensors[i].unused) {
      tape.free(*tensors[i].unused);
    }
  }
  for (std::size_t i = first; i < tensors.size(); ++i) {
    LoadedTensor& one = tensors[i];
    if (one.source->name != name || one.source->layer != layer) {
      break;
    }
    const Leaf leaf = one.source->suffix.empty() ? Leaf::kModelWeights : Leaf::kModelScales;
    const std::uint32_t copy = tape.add(one.source->bytes, leaf);
    tape.free(one.tensor);
    one.tensor = copy;
  }
}

}  // namespace

Bytes unused_zero_points(const Deployment& deployment, const TensorBytes& scale) {
  if (!marlin(deployment) || scale.suffix != "_scale") {
    return Bytes{0};
  }
  const models::Quantization& quantization = *deployment.model->quantization;
  constexpr std::int64_t kScaleBits = 16;
  return quantization.method == "gptq" && quantization.symmetric
             ? Bytes{scale.bytes.count() * quantization.weight_bits / kScaleBits}
             : Bytes{0};
}

Bytes reordered_scales(const Deployment& deployment, int stage, const TensorBytes& scale) {
  constexpr int kHopper = 9;
  constexpr std::int64_t kGroup = 16;
  constexpr std::int64_t kRows = 128;
  constexpr std::int64_t kColumns = 4;
  const bool up = scale.name.ends_with("experts.w13.weight");
  const int major = deployment.gpu.compute_major;
  const bool made = major <= kHopper ? deployment.rules.unread_scales : major == kConsumer;
  if (!made || !deployment.model->quantization ||
      deployment.model->quantization->method != "modelopt" || scale.suffix.empty() ||
      scale.dtype != models::DType::kFloat8 ||
      (!up && !scale.name.ends_with("experts.w2.weight"))) {
    return Bytes{0};
  }
  const models::ShardPlan plan = deployment.shard(stage);
  const models::FfnSpec& ffn = deployment.model->layer(scale.layer).ffn;
  const std::int64_t width = div_ceil(ffn.expert_width, plan.expert_tp.value_or(plan.tp));
  const std::int64_t seen = ffn.expert_input(deployment.model->hidden);
  const std::int64_t rows = up ? width * (ffn.gated ? 2 : 1) : seen;
  const std::int64_t columns = (up ? seen : width) / kGroup;
  if (rows == 0 || columns == 0) {
    return Bytes{0};
  }
  const std::int64_t experts = scale.bytes.count() / (rows * columns);
  return Bytes{experts * align_up(rows, kRows) * align_up(columns, kColumns)};
}

bool reorders_scales(const Deployment& deployment) {
  return deployment.gpu.compute_major == kConsumer && deployment.model->quantization &&
         deployment.model->quantization->method == "modelopt";
}

void repack_weights(const Deployment& deployment, int stage, LoadTape& tape,
                    std::vector<LoadedTensor>& tensors) {
  if (fp4_marlin(deployment)) {
    repack_fp4(deployment, stage, tape, tensors);
    return;
  }
  if (reorders_scales(deployment)) {
    reorder_scales(tape, tensors);
    return;
  }
  const bool scales = repacks_scales(deployment);
  const bool copies = marlin(deployment);
  for (std::size_t i = 0; (scales || copies) && i < tensors.size(); ++i) {
    if (!quantised_linear(tensors, i)) {
      continue;
    }
    if (scales) {
      requantise(tape, tensors[i], tensors[i + 1]);
    } else {
      copy_for_marlin(tape, tensors, i);
    }
  }
}

}  // namespace oomcast::sglang
