// What loading adds and takes away, and the tables it makes.
#include "sim/engines/sglang/repack.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "models/catalog.hpp"

namespace oomcast::sglang {
namespace {

Deployment on_card(const std::string& model, const std::string& gpu, const std::string& version) {
  launch::LaunchOptions options;
  options.engine_version = version;
  launch::Launch line = launch::parse_launch("sglang serve --model-path " + model, options);
  return resolve(std::move(line), std::make_shared<models::ModelSpec>(models::catalog_model(model)),
                 models::find_gpu(gpu), CardState{}, Assumed{});
}

Bytes live(const std::vector<LoadStep>& steps, Leaf leaf) {
  std::map<std::uint32_t, Bytes> held;
  for (const LoadStep& step : steps) {
    if (step.kind == LoadStep::Kind::kFree) {
      held.erase(step.tensor);
    } else if (step.leaf == leaf) {
      held[step.tensor] = step.bytes;
    }
  }
  Bytes sum;
  for (const auto& [tensor, bytes] : held) {
    sum += bytes;
  }
  return sum;
}

Bytes loaded(const std::string& model, const std::string& gpu, const std::string& version,
             Leaf leaf) {
  return live(load_sequence(on_card(model, gpu, version), 0).steps, leaf);
}

TEST(Repack, BlackwellScalesEveryRow) {
  constexpr const char* kModel = "Qwen/Qwen3-8B-FP8";
  // 36 layers of attention (4096 x 6144, 4096 x 4096) and FFN (3 x 4096 x 12288), a byte for 128.
  const Bytes rows{36LL * 4096 * (6144 + 4096 + 3 * 12288) / 128};
  const Bytes cache{36LL * 16};  // scales of K and V
  EXPECT_EQ(loaded(kModel, "B200", "0.5.6", Leaf::kModelScales), rows + cache);
  EXPECT_EQ(loaded(kModel, "B200", "0.5.5", Leaf::kModelScales), Bytes{rows.count() / 32} + cache);
  EXPECT_EQ(loaded(kModel, "H100-80GB", "0.5.6", Leaf::kModelScales),
            Bytes{rows.count() / 32} + cache);
  EXPECT_EQ(loaded(kModel, "B200", "0.5.6", Leaf::kModelWeights),
            loaded(kModel, "B200", "0.5.5", Leaf::kModelWeights));
  EXPECT_EQ(loaded(kModel, "B200", "0.5.6", Leaf::kRuntimeIntermediates), Bytes{0});
}

TEST(Repack, MarlinCopiesAndDropsZeroPoints) {
  models::ModelSpec model;
  model.quantization.emplace();
  model.quantization->method = "gptq";
  model.quantization->weight_bits = 8;
  model.quantization->group_size = 128;
  Deployment deployment;
  deployment.model = std::make_shared<models::ModelSpec>(model);
  deployment.gpu.compute_major = 8;
  const models::TensorBytes weight{
      .name = "mlp.down_proj.weight", .layer = 0, .bytes = Bytes{4096}};
  const models::TensorBytes scale{.name = weight.name,
                                  .suffix = "_scale",
                                  .layer = 0,
                                  .leaf = models::WeightLeaf::kScales,
                                  .bytes = Bytes{64}};
  // 32 groups: as many zero points of a byte.
  EXPECT_EQ(unused_zero_points(deployment, scale), Bytes{32});
  LoadTape tape;
  std::vector<LoadedTensor> tensors = {{tape.add(weight.bytes, Leaf::kModelWeights), &weight},
                                       {tape.add(scale.bytes, Leaf::kModelScales), &scale}};
  tensors.back().unused = tape.add(Bytes{32}, Leaf::kModelScales);
  repack_weights(deployment, 0, tape, tensors);
  EXPECT_EQ(tensors.front().tensor, 3U) << "a copy";
  const std::vector<LoadStep> steps = tape.take();
  EXPECT_EQ(live(steps, Leaf::kModelWeights), Bytes{4096});
  EXPECT_EQ(live(steps, Leaf::kModelScales), Bytes{64});
}

TEST(Repack, ScalesOfFourBitExpertsInBlackwellsOrder) {
  const auto of_card = [](const std::string& gpu) {
    Deployment deployment = on_card("Qwen/Qwen3-30B-A3B", gpu, "0.5.23");
    auto model = std::make_shared<models::ModelSpec>(*deployment.model);
    model->quantization.emplace();
    model->quantization->method = "modelopt";
    deployment.model = model;
    return deployment;
  };
  // 128 experts of 2 x 768 rows with a scale for each 16 of 2048 inputs: already whole blocks.
  const models::TensorBytes scale{.name = "mlp.experts.w13.weight",
                                  .suffix = "_scale",
                                  .layer = 0,
                                  .leaf = models::WeightLeaf::kScales,
                                  .dtype = models::DType::kFloat8,
                                  .bytes = Bytes{128LL * 2 * 768 * 128}};
  EXPECT_EQ(reordered_scales(of_card("H100-80GB"), 0, scale), scale.bytes) << "Marlin leaves them";
  EXPECT_EQ(reordered_scales(of_card("B200"), 0, scale), Bytes{0});
  const Deployment consumer = of_card("RTX5090");
  ASSERT_EQ(reordered_scales(consumer, 0, scale), scale.bytes);
  LoadTape tape;
  std::vector<LoadedTensor> tensors = {{tape.add(scale.bytes, Leaf::kModelScales), &scale}};
  tensors.front().unused = tape.add(scale.bytes, Leaf::kModelScales);
  tensors.front().reordered = scale.bytes;
  repack_weights(consumer, 0, tape, tensors);
  const std::vector<LoadStep> steps = tape.take();
  EXPECT_EQ(steps.size(), 2U + 5U) << "two copies made, three tensors gone";
  EXPECT_EQ(live(steps, Leaf::kModelScales), scale.bytes);
  EXPECT_EQ(live(steps, Leaf::kRuntimeIntermediates), Bytes{0});
}

// 24 layers of 32 experts of 3 x 2880 x 2880, half a byte each as loaded, then two.
TEST(Repack, TritonTakesMxfp4ExpertsIn16Bits) {
  launch::LaunchOptions options;
  options.engine_version = "0.5.23";
  const auto weights = [&](const std::string& flags) {
    const Deployment deployment = resolve(
        launch::parse_launch("sglang serve --model-path openai/gpt-oss-20b " + flags, options),
        std::make_shared<models::ModelSpec>(models::catalog_model("openai/gpt-oss-20b")),
        models::find_gpu("H100-80GB"), CardState{}, Assumed{});
    return load_sequence(deployment, 0).steps;
  };
  const Bytes experts{24LL * 32 * 3 * 2880 * 2880};
  const std::vector<LoadStep> wide = weights("--moe-runner-backend triton");
  EXPECT_GT(live(wide, Leaf::kModelWeights), experts * 2);
  EXPECT_LT(live(weights(""), Leaf::kModelWeights), experts);
  EXPECT_LT(live(wide, Leaf::kModelScales), kMiB) << "they go with the originals";
}

// Two experts without gates, 96 wide, which the kernel takes as 128; a scale for each 16.
TEST(Repack, Fp4ExpertsForMarlinAreCopiedOneByOne) {
  models::ModelSpec model;
  model.hidden = 256;
  model.quantization.emplace();
  model.quantization->method = "modelopt";
  model.layer_kinds.emplace_back();
  model.layer_kinds.back().ffn.gated = false;
  model.layer_kinds.back().ffn.expert_width = 96;
  model.layer_kind = {0};
  Deployment deployment = on_card("Qwen/Qwen3-30B-A3B", "H100-80GB", "0.5.23");
  deployment.model = std::make_shared<models::ModelSpec>(model);
  const Bytes matrix{2LL * 96 * 256 / 2};
  const auto part = [&](std::string_view name, bool scale) {
    models::TensorBytes tensor{.name = name,
                               .layer = 0,
                               .dtype = models::DType::kFloat4,
                               .bytes = scale ? Bytes{matrix.count() / 8} : matrix};
    if (scale) {
      tensor.suffix = "_scale";
      tensor.leaf = models::WeightLeaf::kScales;
      tensor.dtype = models::DType::kFloat8;
    }
    return tensor;
  };
  const std::vector<models::TensorBytes> sources = {
      part("mlp.experts.w13.weight", false), part("mlp.experts.w2.weight", false),
      part("mlp.experts.w13.weight", true), part("mlp.experts.w2.weight", true)};
  LoadTape tape;
  std::vector<LoadedTensor> tensors;
  for (const models::TensorBytes& source : sources) {
    const Leaf leaf = source.suffix.empty() ? Leaf::kModelWeights : Leaf::kModelScales;
    tensors.push_back({tape.add(source.bytes, leaf), &source, source.bytes});
  }
  repack_weights(deployment, 0, tape, tensors);
  const std::vector<LoadStep> steps = tape.take();
  const Bytes padded{matrix.count() / 96 * 128};
  EXPECT_EQ(live(steps, Leaf::kModelWeights), padded * 2);
  EXPECT_EQ(live(steps, Leaf::kModelScales), Bytes{padded.count() / 8} * 2);
  EXPECT_EQ(live(steps, Leaf::kRuntimeIntermediates), Bytes{0});
}

TEST(SharedExperts, FusedOnesLieInTheRoutedTensors) {
  const auto parts = [](const std::string& flags) {
    launch::LaunchOptions options;
    options.engine_version = "0.5.23";
    launch::Launch line = launch::parse_launch(
        "sglang serve --model-path zai-org/GLM-4.5-Air --tp 2 " + flags, options);
    const Deployment deployment =
        resolve(std::move(line),
                std::make_shared<models::ModelSpec>(models::catalog_model("zai-org/GLM-4.5-Air")),
                models::find_gpu("H200"), CardState{}, Assumed{});
    return load_sequence(deployment, 0).steps;
  };
  const auto fused = parts("");
  const auto apart = parts("--disable-shared-experts-fusion");
  EXPECT_EQ(live(fused, Leaf::kModelWeights), live(apart, Leaf::kModelWeights));
  EXPECT_EQ(apart.size() - fused.size(), 2U * 45) << "two tensors in each of 45 layers";
}

TEST(RopeTables, YarnScalesEachHalfIntoATensorOfItsOwn) {
  const auto steps = load_sequence(on_card("openai/gpt-oss-20b", "H100-80GB", "0.5.23"), 0).steps;
  const Bytes half{131072LL * 64 * 4 / 2};
  const auto made = std::count_if(steps.begin(), steps.end(), [half](const LoadStep& step) {
    return step.kind == LoadStep::Kind::kAllocate && step.bytes == half;
  });
  EXPECT_EQ(made, 5) << "angles, and two each for cosines and sines";
}

TEST(RopeTables, Gemma3ComputedAnglesEachStepAndNowIgnoresItsScaling) {
  EXPECT_TRUE(
      load_sequence(on_card("google/gemma-3-4b-it", "H100-80GB", "0.5.9"), 0).tables.empty());
  const LoadSequence now = load_sequence(on_card("google/gemma-3-4b-it", "H100-80GB", "0.5.10"), 0);
  ASSERT_EQ(now.tables.size(), 2U);
  EXPECT_EQ(now.tables.front().rows, 131072);
  EXPECT_EQ(now.tables.back().rows, 131072);
}

}  // namespace
}  // namespace oomcast::sglang
