// NCCL communicators over all cards of the machine, from one process. Memory of the first card.
#include "validation/probes/cuda_support.cuh"
#include "validation/probes/probes.hpp"

#ifdef OOMCAST_HAS_NCCL
#include <nccl.h>

#include <memory>
#include <vector>
#endif

namespace oomcast::validation {

#ifdef OOMCAST_HAS_NCCL

namespace {

void check_nccl(ncclResult_t result, const char* what) {
  if (result != ncclSuccess) {
    throw DeviceFailure(std::string(what) + ": " + ncclGetErrorString(result));
  }
}

// A rank a card, with as many channels as asked for.
class Communicators {
 public:
  Communicators(int ranks, int channels) : all_(static_cast<std::size_t>(ranks)) {
    ncclUniqueId id;
    check_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId");
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.minCTAs = channels;
    config.maxCTAs = channels;
    check_nccl(ncclGroupStart(), "ncclGroupStart");
    for (int rank = 0; rank < ranks; ++rank) {
      check(cudaSetDevice(rank), "cudaSetDevice");
      check_nccl(
          ncclCommInitRankConfig(&all_[static_cast<std::size_t>(rank)], ranks, id, rank, &config),
          "ncclCommInitRankConfig");
    }
    check_nccl(ncclGroupEnd(), "ncclGroupEnd");
  }
  ~Communicators() {
    for (ncclComm_t communicator : all_) {
      ncclCommDestroy(communicator);
    }
    cudaSetDevice(0);
  }
  Communicators(const Communicators&) = delete;
  Communicators& operator=(const Communicators&) = delete;

  // Buffers of the first collective come with it.
  void all_reduce(const std::vector<std::unique_ptr<Buffer>>& buffers) const {
    check_nccl(ncclGroupStart(), "ncclGroupStart");
    for (std::size_t rank = 0; rank < all_.size(); ++rank) {
      const Buffer& buffer = *buffers[rank];
      check_nccl(ncclAllReduce(buffer.as<void>(), buffer.as<void>(),
                               static_cast<std::size_t>(buffer.bytes()) / sizeof(float), ncclFloat,
                               ncclSum, all_[rank], nullptr),
                 "ncclAllReduce");
    }
    check_nccl(ncclGroupEnd(), "ncclGroupEnd");
    for (std::size_t rank = 0; rank < all_.size(); ++rank) {
      check(cudaSetDevice(static_cast<int>(rank)), "cudaSetDevice");
      check(cudaDeviceSynchronize(), "an all-reduce");
    }
    check(cudaSetDevice(0), "cudaSetDevice");
  }

 private:
  std::vector<ncclComm_t> all_;
};

}  // namespace

Values nccl_probe(const Settings& settings) {
  constexpr std::int64_t kMessage = std::int64_t{16} << 20;
  const auto ranks = static_cast<int>(settings.at("ranks"));
  std::vector<std::unique_ptr<Buffer>> buffers;
  for (int rank = 0; rank < ranks; ++rank) {
    check(cudaSetDevice(rank), "cudaSetDevice");
    buffers.push_back(std::make_unique<Buffer>(kMessage));
  }
  check(cudaSetDevice(0), "cudaSetDevice");
  const std::int64_t before = free_bytes();
  const Communicators communicators(ranks, static_cast<int>(settings.at("channels")));
  check(cudaSetDevice(0), "cudaSetDevice");
  const std::int64_t at_creation = before - free_bytes();
  communicators.all_reduce(buffers);
  return {{"creation_bytes", static_cast<double>(at_creation)},
          {"bytes", static_cast<double>(before - free_bytes())}};
}

#else

Values nccl_probe(const Settings&) { throw Unsupported("NCCL was not found when this was built"); }

#endif

}  // namespace oomcast::validation
