#include "sim/engines/sglang/repack.hpp"

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

void repack_weights(const Deployment& deployment, LoadTape& tape,
                    std::vector<LoadedTensor>& tensors) {
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
