#include "models/gpu.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "models/data.hpp"

namespace oomcast::models {
namespace {

std::string folded(std::string_view name) {
  std::string out;
  for (const char letter : name) {
    if (letter == ' ' || letter == '-' || letter == '_') {
      continue;
    }
    out += letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
  }
  return out;
}

double share(const JsonView& view, std::string_view key, double fallback) {
  const double value = view.number(key).value_or(fallback);
  if (value <= 0.0 || value > 1.5) {
    view.complain(key, "a share above 0 and at most 1.5");
    return fallback;
  }
  return value;
}

// Figures are objects {"value": …, "source": …}; the source is for people.
std::optional<double> figure(const JsonView& view, std::string_view key) {
  const auto object = view.object(key);
  return object ? object->number("value") : std::nullopt;
}

void read_gemm(const JsonView& card, std::string_view type, GemmRates& out) {
  if (const auto peaks = card.object("dense_tflops")) {
    out.peak_flops = peaks->number(type).value_or(0.0) * 1e12;
  }
  const auto efficiency = card.object("efficiency");
  const auto gemm = efficiency ? efficiency->object("gemm") : std::nullopt;
  const auto rates = gemm ? gemm->object(type) : std::nullopt;
  if (!rates) {
    return;
  }
  out.bandwidth_share_large = share(*rates, "bandwidth_large", out.bandwidth_share_large);
  out.bandwidth_share_small = share(*rates, "bandwidth_small", out.bandwidth_share_small);
  out.flops_share_256 = share(*rates, "flops_256", out.flops_share_256);
  out.flops_share_2048 = share(*rates, "flops_2048", out.flops_share_2048);
  out.flops_share_8192 = share(*rates, "flops_8192", out.flops_share_8192);
}

void read_attention(const JsonView& card, GpuSpec& gpu) {
  const auto efficiency = card.object("efficiency");
  if (!efficiency) {
    return;
  }
  gpu.efficiency_from = efficiency->text("from").value_or(gpu.name);
  AttentionRates& rates = gpu.attention;
  if (const auto decode = efficiency->object("decode_attention")) {
    rates.decode_1_16k = share(*decode, "1x16k", rates.decode_1_16k);
    rates.decode_16_8k = share(*decode, "16x8k", rates.decode_16_8k);
    rates.decode_64_1k = share(*decode, "64x1k", rates.decode_64_1k);
    rates.decode_64_4k = share(*decode, "64x4k", rates.decode_64_4k);
    rates.decode_256_1k = share(*decode, "256x1k", rates.decode_256_1k);
  }
  if (const auto others = efficiency->object("decode_attention_others")) {
    const auto if_given = [&](const char* key) {
      return others->has(key) ? share(*others, key, 0) : 0.0;
    };
    rates.decode_fp8_kv = if_given("fp8_kv");
    rates.decode_flashinfer_fa2_fp8_kv = if_given("flashinfer_fa2_fp8_kv");
  }
  if (const auto prefill = efficiency->object("prefill_attention")) {
    rates.prefill_1k = share(*prefill, "1k", rates.prefill_1k);
    rates.prefill_4k = share(*prefill, "4k", rates.prefill_4k);
    rates.prefill_16k = share(*prefill, "16k", rates.prefill_16k);
  }
}

void read_memory(const JsonView& card, GpuSpec& gpu) {
  const auto memory = card.object("memory");
  if (!memory) {
    card.complain("memory", "an object");
    return;
  }
  constexpr double kMostMib = 1e9;
  const double nvml_mib = figure(*memory, "nvml_mib").value_or(0.0);
  const double device_bytes = figure(*memory, "device_total_bytes").value_or(0.0);
  const double uncertainty = memory->number("device_total_uncertainty_mib").value_or(0.0);
  if (!(nvml_mib > 0.0 && nvml_mib < kMostMib && device_bytes > 0.0 &&
        device_bytes < kMostMib * 1048576.0 && uncertainty >= 0.0 && uncertainty < kMostMib)) {
    card.complain("memory", "nvml_mib and device_total_bytes with positive values");
    return;
  }
  gpu.nvml_total = Bytes{std::llround(nvml_mib * 1048576.0)};
  gpu.device_total = Bytes{std::llround(device_bytes)};
  gpu.device_total_uncertainty = Bytes{std::llround(uncertainty * 1048576.0)};
  gpu.unified_memory = memory->boolean("unified").value_or(false);
}

double read_host_link(const JsonView& card) {
  constexpr double kMost = 1e5;
  const double speed = figure(card, "host_link_gb_s").value_or(0.0);
  if (!(speed >= 0.0 && speed <= kMost)) {
    card.complain("host_link_gb_s", "a value of at most 1e5 GB/s");
    return 0;
  }
  return speed * 1e9;
}

GpuSpec read_gpu(const Json& json, const std::string& source) {
  Problems problems;
  const JsonView card(json, source, "", problems);
  GpuSpec gpu;
  gpu.name = card.text("name").value_or("");
  gpu.vendor = card.text("vendor").value_or("nvidia");
  gpu.aliases = card.texts("aliases").value_or(std::vector<std::string>{});
  gpu.notes = card.texts("notes").value_or(std::vector<std::string>{});
  if (gpu.name.empty()) {
    card.complain("name", "the name that tools print");
  }
  read_memory(card, gpu);
  gpu.bandwidth = card.number("bandwidth_gb_s").value_or(0.0) * 1e9;
  gpu.sm_count = static_cast<int>(card.integer("sm_count", 1, 4096).value_or(0));
  gpu.threads_per_sm = static_cast<int>(card.integer("threads_per_sm", 1, 4096).value_or(0));
  const std::string capability = card.text("compute_capability").value_or("");
  if (std::sscanf(capability.c_str(), "%d.%d", &gpu.compute_major, &gpu.compute_minor) != 2 &&
      gpu.vendor == "nvidia") {
    card.complain("compute_capability", "e.g. \"9.0\"");
  }
  gpu.nvlink_bandwidth = card.number("nvlink_gb_s").value_or(0.0) * 1e9;
  gpu.host_link_bandwidth = read_host_link(card);
  gpu.l2_bytes = kMiB * card.integer("l2_mib", 0, 1 << 20).value_or(0);
  read_gemm(card, "bf16", gpu.bf16);
  read_gemm(card, "fp8", gpu.fp8);
  read_gemm(card, "fp4", gpu.fp4);
  read_attention(card, gpu);
  const double context_kib_per_thread = card.number("context_kib_per_thread").value_or(1.94);
  const double context = 8.0 * 1048576.0 + static_cast<double>(gpu.sm_count) *
                                               static_cast<double>(gpu.threads_per_sm) *
                                               context_kib_per_thread * 1024.0;
  gpu.context_bytes = Bytes{std::llround(std::clamp(context, 0.0, 1e15))};
  problems.raise_if_any();
  return gpu;
}

}  // namespace

std::vector<std::string> gpu_names() {
  std::vector<std::string> names;
  for (const std::string& file : embedded_names("gpus/")) {
    const Json& card = embedded_json(file);
    if (card.is_object() && card.contains("name") && card["name"].is_string()) {
      names.push_back(card["name"].get<std::string>());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

GpuSpec find_gpu(std::string_view name) {
  const std::string wanted = folded(name);
  std::vector<std::string> known;
  for (const std::string& file : embedded_names("gpus/")) {
    GpuSpec gpu = read_gpu(embedded_json(file), file);
    known.push_back(gpu.name);
    bool hit = folded(gpu.name) == wanted;
    for (const std::string& alias : gpu.aliases) {
      hit = hit || folded(alias) == wanted;
      known.push_back(alias);
    }
    if (hit && !wanted.empty()) {
      return gpu;
    }
  }
  const std::string nearest = did_you_mean(name, known);
  throw ConfigError(Problem{"command line", "--gpu", std::string(name),
                            "a GPU of the catalog (`oomcast list gpus`)", nearest});
}

}  // namespace oomcast::models
