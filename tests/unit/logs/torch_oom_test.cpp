// PyTorch's out-of-memory texts, version by version. The figures of the last two were published
// with the issues they came from (QwenLM/Qwen3#1387, sgl-project/sglang#5755).
#include "sim/logs/torch_oom.hpp"

#include <gtest/gtest.h>

namespace oomcast::logs {
namespace {

Bytes mib(double value) { return Bytes{static_cast<std::int64_t>(value * 1048576.0 + 0.5)}; }
Bytes gib(double value) { return mib(value * 1024); }

TEST(TorchOom, UpTo20) {
  const auto oom = read_torch_oom(
      "RuntimeError: CUDA out of memory. Tried to allocate 512.00 MiB (GPU 3; 23.69 GiB total "
      "capacity; 20.50 GiB already allocated; 300.50 MiB free; 22.00 GiB reserved in total by "
      "PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb");
  ASSERT_TRUE(oom);
  EXPECT_EQ(oom->tried, mib(512));
  EXPECT_EQ(oom->gpu, 3);
  EXPECT_EQ(oom->total, gib(23.69));
  EXPECT_EQ(oom->allocated, gib(20.5));
  EXPECT_EQ(oom->free, mib(300.5));
  EXPECT_EQ(oom->unallocated, gib(1.5));
  EXPECT_EQ(oom->short_by(), mib(211.5));
  EXPECT_TRUE(oom->is_fragmented());  // 1.5 GiB lie unused in PyTorch's segments
}

TEST(TorchOom, From21WithOtherProcesses) {
  const auto oom = read_torch_oom(
      "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a "
      "total capacty of 79.10 GiB of which 1.19 GiB is free. Process 4711 has 10.00 GiB memory in "
      "use. Process 4712 has 512.00 MiB memory in use. Including non-PyTorch memory, this process "
      "has 67.41 GiB memory in use. Of the allocated memory 60.00 GiB is allocated by PyTorch, and "
      "300.00 MiB is reserved by PyTorch but unallocated.");
  ASSERT_TRUE(oom);
  EXPECT_EQ(oom->total, gib(79.1));
  EXPECT_EQ(oom->process, gib(67.41));
  EXPECT_EQ(oom->others, gib(10.5));
  EXPECT_EQ(oom->other_processes(), gib(10.5));
  EXPECT_EQ(oom->outside_torch(), gib(67.41) - gib(60) - mib(300));
  EXPECT_FALSE(oom->is_fragmented());  // 1.19 + 0.29 < 2
  EXPECT_EQ(oom->short_by(), gib(2) - gib(1.19));
}

TEST(TorchOom, From25WithPoolsAndLimit) {
  const auto oom = read_torch_oom(
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 786.00 MiB. GPU 1 has a total "
      "capacity of 79.19 GiB of which 551.94 MiB is free. Including non-PyTorch memory, this "
      "process "
      "has 78.64 GiB memory in use. 71.27 GiB allowed; Of the allocated memory 74.12 GiB is "
      "allocated by PyTorch, with 660.00 MiB allocated in private pools (e.g., CUDA Graphs), and "
      "2.14 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is "
      "large");
  ASSERT_TRUE(oom);
  EXPECT_EQ(oom->gpu, 1);
  EXPECT_EQ(oom->allowed, gib(71.27));
  EXPECT_EQ(oom->private_pools, mib(660));
  EXPECT_EQ(oom->unallocated, gib(2.14));
  EXPECT_EQ(oom->other_processes(), Bytes{0});
  EXPECT_TRUE(oom->is_fragmented());
}

TEST(TorchOom, SmallUnitsAndHip) {
  const auto oom = read_torch_oom(
      "HIP out of memory. Tried to allocate 20.00 KiB. GPU 0 has a total capacity of 191.98 GiB of "
      "which 17 bytes is free.");
  ASSERT_TRUE(oom);
  EXPECT_EQ(oom->tried, Bytes{20480});
  EXPECT_EQ(oom->free, Bytes{17});
}

TEST(TorchOom, Shortened) {
  const auto oom = read_torch_oom(
      "Tried to allocate 150.00 MiB. GPU 1 has a total capacity of 21.99 GiB of which 39.00 MiB is "
      "free. Process has 21.94 GiB in use. 15.75 GiB allocated by PyTorch, 35.88 MiB in private "
      "pools (CUDA Graphs)");
  ASSERT_TRUE(oom);
  EXPECT_EQ(oom->process, gib(21.94));
  EXPECT_EQ(oom->allocated, gib(15.75));
  EXPECT_EQ(oom->private_pools, mib(35.88));
  // "about 6 GiB of the process lie outside PyTorch"
  EXPECT_NEAR(to_gib(*oom->outside_torch()), 6.19, 0.01);
  const auto noted = read_torch_oom("tried 80.04 GiB; total 79.10, free 20.08; allocated 56.90");
  ASSERT_TRUE(noted);
  EXPECT_EQ(noted->tried, gib(80.04));
  EXPECT_EQ(noted->total, gib(79.1));
  EXPECT_EQ(noted->free, gib(20.08));
  EXPECT_EQ(noted->allocated, gib(56.9));
}

TEST(TorchOom, OtherTexts) {
  EXPECT_FALSE(read_torch_oom("CUDA error: out of memory"));
  EXPECT_FALSE(read_torch_oom("GPU 0 has a total capacity of 79.19 GiB of which 1 GiB is free"));
  EXPECT_FALSE(read_torch_oom(""));
}

TEST(TorchOom, Sizes) {
  EXPECT_EQ(parse_torch_size("1,024.50 MiB"), mib(1024.5));
  EXPECT_EQ(parse_torch_size("1.5TiB"), gib(1536));
  EXPECT_EQ(parse_torch_size("17 bytes"), Bytes{17});
  for (const char* text : {"", "MiB", "1.2", "-1 MiB", "1e9 GiB", "99999999999999999 TiB"}) {
    EXPECT_FALSE(parse_torch_size(text)) << text;
  }
}

}  // namespace
}  // namespace oomcast::logs
