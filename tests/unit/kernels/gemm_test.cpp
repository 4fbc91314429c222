#include "sim/kernels/gemm.hpp"

#include <gtest/gtest.h>

#include "sim/core/error.hpp"
#include "sim/core/random.hpp"

namespace oomcast::kernels {
namespace {

constexpr Bytes kHopper = 32 * kMiB;
constexpr Bytes kOlder{8'519'680};

struct Parsed {
  Bytes bytes;
  std::size_t problems;
  std::size_t warnings;

  friend bool operator==(const Parsed&, const Parsed&) = default;
};

Parsed parse(std::string_view text) {
  Problems problems;
  std::vector<std::string> warnings;
  const Bytes bytes = cublas_workspace_config(text, kOlder, problems, warnings);
  return {bytes, problems.found().size(), warnings.size()};
}

TEST(Cublas, DefaultsByGenerationAndVersion) {
  const Version torch{{2, 10, 0}};
  EXPECT_EQ(cublas_default_workspace(torch, models::find_gpu("A100")), kOlder);
  EXPECT_EQ(cublas_default_workspace(torch, models::find_gpu("L40S")), kOlder);
  EXPECT_EQ(cublas_default_workspace(torch, models::find_gpu("H100")), kHopper);
  EXPECT_EQ(cublas_default_workspace(torch, models::find_gpu("B200")), kHopper);
  EXPECT_EQ(cublas_default_workspace(torch, models::find_gpu("RTX 5090")), kHopper);
  EXPECT_EQ(cublas_default_workspace({{2, 5, 0}}, models::find_gpu("B200")), kOlder);
}

TEST(Cublas, OneWorkspaceAStream) {
  CublasUse use;
  use.torch = {{2, 10, 0}};
  use.streams = 2;
  EXPECT_EQ(device_bytes(cublas(use, models::find_gpu("A100"))), kOlder * 2);  // 2 x 8.125 MiB
  EXPECT_EQ(device_bytes(cublas(use, models::find_gpu("H100"))), 64 * kMiB);
  use.workspace = 4 * kMiB;
  EXPECT_EQ(device_bytes(cublas(use, models::find_gpu("H100"))), 8 * kMiB);
  // Before 2.8 cuBLASLt took 1 MiB a call beside it.
  use.torch = {{2, 6, 0}};
  EXPECT_EQ(device_bytes(cublas(use, models::find_gpu("H100"))), 9 * kMiB);
  use.lt_workspace = 3 * kMiB;
  EXPECT_EQ(device_bytes(cublas(use, models::find_gpu("H100"))), 11 * kMiB);
  use.streams = -1;
  EXPECT_THROW(cublas(use, models::find_gpu("H100")), ConfigError);
}

TEST(Cublas, WorkspaceConfigAsPyTorchReadsIt) {
  EXPECT_EQ(parse(":4096:2:16:8"), (Parsed{kOlder, 0, 0}));
  EXPECT_EQ(parse(":4096:8"), (Parsed{kHopper, 0, 0}));
  EXPECT_EQ(parse("x:16:8 and :4096:2,"), (Parsed{kOlder, 0, 0}));
  EXPECT_EQ(parse(":1:2:3"), (Parsed{2 * kKiB, 0, 0}));  // a size without a count is passed over
  EXPECT_EQ(parse("::1:2"), (Parsed{2 * kKiB, 0, 0}));
  EXPECT_EQ(parse(":0:0"), (Parsed{Bytes{0}, 0, 0}));
  for (const char* silent : {"", "4096", ":", ":::", ":a:b", ":1:-2", ":4096", "4096:8"}) {
    EXPECT_EQ(parse(silent), (Parsed{kOlder, 0, 1})) << silent;
  }
  for (const char* wrong :
       {":99999999999999999999:1", ":1:99999999999999999999", ":1073741824:1024", ":1:1073741825",
        ":1099511627776:1099511627776", ":1073741824:1:1:1"}) {
    EXPECT_EQ(parse(wrong), (Parsed{kOlder, 1, 0})) << wrong;
  }
  EXPECT_EQ(parse(":1073741824:1"), (Parsed{1024 * kGiB, 0, 0}));  // 1 TiB fits, 1 KiB more not
  EXPECT_EQ(parse(std::string(5000, ':')), (Parsed{kOlder, 1, 0}));
}

TEST(Cublas, AnyTextGivesASizeOrAProblem) {
  constexpr std::string_view kLetters = ":::0123456789 -x";
  RandomStream stream = random_stream(1, "cublas workspace config");
  for (int round = 0; round < 50'000; ++round) {
    std::string text;
    for (std::int64_t left = uniform_int(stream, 0, 40); left > 0; --left) {
      text += kLetters[static_cast<std::size_t>(uniform_int(stream, 0, 15))];
    }
    const Parsed parsed = parse(text);
    ASSERT_GE(parsed.bytes, Bytes{0}) << text;
    ASSERT_LE(parsed.bytes, 1024 * kGiB) << text;
    ASSERT_LE(parsed.problems + parsed.warnings, 1U) << text;
  }
}

TEST(Gemm, FlashInferKeepsOneAnOperator) {
  EXPECT_EQ(device_bytes(flashinfer_gemm(3)), 96 * kMiB);
  EXPECT_THROW(flashinfer_gemm(-1), ConfigError);
}

TEST(Gemm, QuantisedActivationsOnPaper) {
  const auto bytes = [](ActivationScales scales) {
    const auto buffers = quantised_activation(129, 7168, scales);
    EXPECT_EQ(buffers.size(), 2U);
    return std::pair{buffers[0].bytes.count(), buffers[1].bytes.count()};
  };
  using Pair = std::pair<std::int64_t, std::int64_t>;
  EXPECT_EQ(bytes(ActivationScales::kFp8Tensor), (Pair{129 * 7168, 4}));
  EXPECT_EQ(bytes(ActivationScales::kFp8Token), (Pair{129 * 7168, 129 * 4}));
  EXPECT_EQ(bytes(ActivationScales::kFp8Block128), (Pair{129 * 7168, 132 * 56 * 4}));
  EXPECT_EQ(bytes(ActivationScales::kMxfp8), (Pair{129 * 7168, 256 * 224}));
  EXPECT_EQ(bytes(ActivationScales::kNvfp4), (Pair{129 * 3584, 256 * 448}));
  EXPECT_EQ(device_bytes(deep_gemm(128, 128)), Bytes{128 * 128 + 128 * 4});
  EXPECT_THROW(quantised_activation(0, 1, ActivationScales::kNvfp4), ConfigError);
  EXPECT_THROW(
      quantised_activation(ShapeCheck::kMost, ShapeCheck::kMost, ActivationScales::kFp8Token),
      ArithmeticOverflow);
}

TEST(Gemm, MarlinOnPaper) {
  const models::GpuSpec gpu = models::find_gpu("H100");
  EXPECT_EQ(device_bytes(marlin({1, 4096, false, false}, gpu)), Bytes{132 * 16});
  EXPECT_EQ(device_bytes(marlin({17, 4096, true, false}, gpu)),
            Bytes{132 * 16 + 132 * 32 * 256 * 4});
  EXPECT_EQ(device_bytes(marlin({8192, 4096, true, true}, gpu)),
            Bytes{132 * 16 + 132 * 64 * 256 * 4 + 8192LL * 4096 * 2});
}

}  // namespace
}  // namespace oomcast::kernels
