#include "sim/comm/context.hpp"

#include <gtest/gtest.h>

#include "sim/core/error.hpp"

namespace oomcast::comm {
namespace {

TEST(Context, MeasuredCardsAndTheFormula) {
  const auto ada = context_parts(models::find_gpu("RTX 6000 Ada"), {});
  ASSERT_EQ(ada.size(), 1U);
  EXPECT_EQ(ada[0].buffer.bytes, 426 * kMiB);
  EXPECT_EQ(ada[0].buffer.backing, Backing::kContext);
  // 8 MiB + 132 x 2048 x 1.94 KiB = 520 MiB, within a quarter.
  const auto h100 = context_parts(models::find_gpu("H100"), {});
  EXPECT_NEAR(to_mib(h100[0].buffer.bytes), 520, 1);
  EXPECT_NEAR(to_mib(h100[0].low), 390, 1);
  EXPECT_NEAR(to_mib(h100[0].high), 650, 1);
  EXPECT_NEAR(to_mib(context_parts(models::find_gpu("A100"), {})[0].buffer.bytes), 427, 1);
  EXPECT_NEAR(to_mib(context_parts(models::find_gpu("B200"), {})[0].buffer.bytes), 582, 1);
  EXPECT_NEAR(to_mib(context_parts(models::find_gpu("RTX 4090"), {})[0].buffer.bytes), 380, 1);
}

TEST(Context, ModulesDriverAndStack) {
  const models::GpuSpec gpu = models::find_gpu("H100");
  ContextUse use;
  use.modules = {"torch", "cublas", "attention"};
  use.driver_branch = 595;
  use.stack_per_thread = Bytes{1024};
  const auto parts = context_parts(gpu, use);
  ASSERT_EQ(parts.size(), 6U);
  for (const ContextPart& part : parts) {
    EXPECT_LE(part.low, part.buffer.bytes);
    EXPECT_LE(part.buffer.bytes, part.high);
    EXPECT_FALSE(part.source.empty());
  }
  EXPECT_EQ(parts[1].high, 1400 * kMiB);
  EXPECT_EQ(parts[3].buffer.bytes, 55 * kMiB);
  EXPECT_EQ(parts[5].buffer.bytes, Bytes{132 * 2048 * 1024});  // 264 MiB
  use.driver_branch = 594;
  EXPECT_EQ(context_parts(gpu, use).size(), 5U);
}

TEST(Context, UnknownModulesAreAllNamed) {
  ContextUse use;
  use.modules = {"torcg", "torch", "cublaslt"};
  try {
    context_parts(models::find_gpu("H100"), use);
    FAIL();
  } catch (const ConfigError& error) {
    ASSERT_EQ(error.problems().size(), 2U);
    EXPECT_NE(std::string(error.what()).find("`torch`"), std::string::npos);
  }
  use = {};
  use.driver_branch = -1;
  EXPECT_THROW(context_parts(models::find_gpu("H100"), use), ConfigError);
}

}  // namespace
}  // namespace oomcast::comm
