// SPDX-License-Identifier: Apache-2.0
#include "launch/pmix/server.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <random>
#include <utility>

#include "accelerate/base/error.hpp"
#include "launch/plan/error.hpp"
#include "launch/plan/plan.hpp"
#include "launch/pmix/events.hpp"
#include "launch/pmix/info.hpp"
#include "launch/pmix/library.hpp"

namespace accelerate::launch {
namespace {

/// libpmix 4.2 accepts every client that knows the job's name, so the name must be unpredictable.
std::string unpredictable_name() {
  std::random_device random;
  return fmt::format("accelerate-{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

/// libpmix 4.2 copies a host name up to its first digit into a stack array of 50 bytes. On a single machine any name
/// works.
std::string short_host_name() { return base::host_name().substr(0, 49); }

/// During the server's start-up, restricts hwloc to processors. By default hwloc would also query ten X servers for
/// GPUs and read the registers of every PCI device.
class OnlyProcessors {
 public:
  OnlyProcessors() : set_(std::getenv(kName) == nullptr && setenv(kName, "linux,stop", 0) == 0) {}
  ~OnlyProcessors() {
    if (set_) unsetenv(kName);
  }
  OnlyProcessors(const OnlyProcessors&) = delete;
  OnlyProcessors& operator=(const OnlyProcessors&) = delete;

 private:
  static constexpr const char* kName = "HWLOC_COMPONENTS";
  bool set_;
};

/// A later libpmix may read more entries than the module of these headers has, so zeros follow.
struct PaddedModule {
  pmix_server_module_t module{};
  void* more[64]{};
};

class PmixServer : public MpiServer {
 public:
  PmixServer(int64_t ranks, std::string temporary, std::string shared_memory)
      : ranks_(ranks),
        pmix_(load_pmix()),
        host_(short_host_name()),
        job_(unpredictable_name()),
        folder_(std::move(temporary)),
        shared_memory_(std::move(shared_memory)) {
    if (!pmix_.unavailable_reason.empty()) fail(ErrorKind::environment, "{}", pmix_.unavailable_reason);
    start();
    register_job();
  }

  env::Variables variables(int64_t rank) override {
    const pmix_proc_t process = name_of(rank);
    PmixAnswer answer;
    check("PMIx_server_register_client",
          answer.wait(pmix_.register_client(&process, geteuid(), getegid(), &events_, &PmixAnswer::set, &answer)));
    auto** list = static_cast<char**>(std::calloc(1, sizeof(char*)));
    const auto status = pmix_.setup_fork(&process, &list);
    env::Variables result;
    for (char** entry = list; *entry != nullptr; ++entry) {
      const std::string text = *entry;
      const auto equals = text.find('=');
      result[text.substr(0, equals)] = text.substr(equals + 1);
      std::free(*entry);
    }
    std::free(static_cast<void*>(list));
    check("PMIx_server_setup_fork", status);
    // The component posix tests itself with a file in /dev/shm, which remains if the rank is killed at that moment.
    result["OMPI_MCA_shmem"] = "mmap";
    result["OMPI_MCA_btl_vader_backing_directory"] = shared_memory_;
    result["OMPI_MCA_btl_sm_backing_directory"] = shared_memory_;  // its name in Open MPI 5
    return result;
  }

  [[nodiscard]] int wake_fd() const override { return events_.wake_fd(); }
  [[nodiscard]] std::optional<MpiAbort> aborted() const override { return events_.aborted(); }
  void clear_wakeup() const override { events_.clear_wakeup(); }
  [[nodiscard]] bool joined_mpi_init(int64_t rank) const override { return events_.joined_mpi_init(rank); }
  [[nodiscard]] bool not_finalized(int64_t rank) const override { return events_.is_open(rank); }

 private:
  void check(const char* what, pmix_status_t status) const {
    if (status == PMIX_SUCCESS || status == PMIX_OPERATION_SUCCEEDED) return;
    fail(ErrorKind::environment, "{} failed: {}; --backend gloo needs no PMIx", what, pmix_.error_string(status));
  }

  [[nodiscard]] pmix_proc_t name_of(int64_t rank) const {
    pmix_proc_t process{};
    job_.copy(process.nspace, PMIX_MAX_NSLEN);
    process.rank = static_cast<pmix_rank_t>(rank);
    return process;
  }

  void start() {
    static PaddedModule padded{.module = callbacks(), .more = {}};  // libpmix may read it until the process ends
    PmixInfos infos;
    infos.string(PMIX_SERVER_TMPDIR, folder_);
    infos.string(PMIX_SYSTEM_TMPDIR, folder_);
    infos.flag(PMIX_SERVER_TOOL_SUPPORT, false);
    infos.flag(PMIX_SERVER_REMOTE_CONNECTIONS, false);
    infos.flag(PMIX_SERVER_SESSION_SUPPORT, false);
    infos.flag(PMIX_SERVER_SYSTEM_SUPPORT, false);
    infos.string(PMIX_SERVER_NSPACE, fmt::format("{}-server", job_));
    infos.rank(PMIX_SERVER_RANK, 0);
    infos.string(PMIX_HOSTNAME, host_);
    const OnlyProcessors no_other_devices;
    check("PMIx_server_init", pmix_.server_init(&padded.module, infos.data(), infos.size()));
  }

  /// Open MPI aborts at start-up without the local and node ranks and the maps; the other attributes avoid guesses.
  void register_job() {
    const auto count = static_cast<uint32_t>(ranks_);
    const std::string session = fmt::format("{}/{}", folder_, job_);
    make_folder(session);
    make_folder(fmt::format("{}/job", session));
    PmixInfos infos;
    for (const char* key :
         {PMIX_UNIV_SIZE, PMIX_JOB_SIZE, PMIX_MAX_PROCS, PMIX_LOCAL_SIZE, PMIX_NODE_SIZE, PMIX_APP_SIZE}) {
      infos.uint32(key, count);
    }
    infos.uint32(PMIX_NUM_NODES, 1);
    infos.uint32(PMIX_JOB_NUM_APPS, 1);
    infos.string(PMIX_JOBID, job_);
    const std::string all = comma_separated_ranks();
    infos.string(PMIX_LOCAL_PEERS, all);
    infos.rank(PMIX_LOCALLDR, 0);
    infos.regex(PMIX_NODE_MAP, map(pmix_.generate_regex, host_));
    infos.regex(PMIX_PROC_MAP, map(pmix_.generate_ppn, all));
    infos.string(PMIX_TMPDIR, session);
    infos.string(PMIX_NSDIR, fmt::format("{}/job", session));
    for (int64_t rank = 0; rank < ranks_; ++rank) describe_rank(infos.array(PMIX_PROC_DATA), rank, session);
    PmixAnswer answer;
    check("PMIx_server_register_nspace",
          answer.wait(pmix_.register_nspace(job_.c_str(), static_cast<int>(ranks_), infos.data(), infos.size(),
                                            &PmixAnswer::set, &answer)));
  }

  void describe_rank(PmixInfos& infos, int64_t rank, const std::string& session) const {
    const std::string own = fmt::format("{}/job/{}", session, rank);
    make_folder(own);
    const auto global = static_cast<uint32_t>(rank);
    infos.rank(PMIX_RANK, global);
    infos.rank(PMIX_GLOBAL_RANK, global);
    infos.uint16(PMIX_LOCAL_RANK, static_cast<uint16_t>(rank));
    infos.uint16(PMIX_NODE_RANK, static_cast<uint16_t>(rank));
    infos.uint32(PMIX_NODEID, 0);
    infos.uint32(PMIX_APPNUM, 0);
    infos.string(PMIX_HOSTNAME, host_);
    infos.string(PMIX_PROCDIR, own);
  }

  [[nodiscard]] std::string comma_separated_ranks() const {
    std::string list = "0";
    for (int64_t rank = 1; rank < ranks_; ++rank) list += fmt::format(",{}", rank);
    return list;
  }

  template <typename Generate>
  [[nodiscard]] std::string map(Generate generate, const std::string& input) const {
    char* text = nullptr;
    const auto status = generate(input.c_str(), &text);
    std::string result = text != nullptr ? text : "";
    std::free(text);
    check("PMIx_generate_regex", status);
    // a compressed list with zeros inside; libpmix 4.2 does not create one for these lists
    if (result.starts_with("blob")) {
      fail(ErrorKind::environment, "--num_processes {} is too many for --backend mpi on one machine; use gloo", ranks_);
    }
    return result;
  }

  static void make_folder(const std::string& path) {
    if (mkdir(path.c_str(), 0700) != 0) {
      fail(ErrorKind::io, "{} cannot be made: {}", path, std::strerror(errno));
    }
  }

  int64_t ranks_;
  PmixLibrary pmix_;
  std::string host_;
  std::string job_;
  std::string folder_;         // session folders of PMIx and Open MPI
  std::string shared_memory_;  // shared memory of the ranks
  PmixEvents events_;
};

/// Removes variables of another launcher, because libpmix reads them: two launchers inside one mpirun crashed.
void scrub_own_environment() {
  for (const auto& [name, value] : env::current_variables()) {
    if (is_foreign_launcher_variable(name, true)) unsetenv(name.c_str());
  }
}

}  // namespace

std::optional<std::string> mpi_server_unavailable_reason() {
  const std::string unavailable_reason = load_pmix().unavailable_reason;
  return unavailable_reason.empty() ? std::nullopt : std::optional(unavailable_reason);
}

MpiServer& serve_mpi(int64_t ranks, const std::string& temporary, const std::string& shared_memory) {
  scrub_own_environment();
  // Never freed, because its thread cannot be stopped. PMIx_server_finalize (4.2.2) waits for ever for a lock if a rank
  // was killed while it connected.
  return *new PmixServer(ranks, temporary, shared_memory);
}

}  // namespace accelerate::launch
