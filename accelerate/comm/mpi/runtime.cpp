// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/mpi/runtime.hpp"

#include <fmt/format.h>

#include <csignal>
#include <cstdlib>
#include <numeric>
#include <string>
#include <thread>

#include "accelerate/base/log.hpp"
#include "accelerate/comm/core/connection.hpp"
#include "accelerate/comm/core/deadline_call.hpp"
#include "accelerate/comm/core/elementwise.hpp"
#include "accelerate/comm/core/peer_error_text.hpp"
#include "accelerate/comm/mpi/broken_pipe.hpp"
#include "accelerate/comm/mpi/network.hpp"
#include "accelerate/comm/mpi/pmix_client.hpp"
#include "accelerate/comm/mpi/start_diagnosis.hpp"

namespace accelerate::comm {
namespace {

constexpr std::string_view kOperation = "connect";
/// Tag of an empty message on MPI_COMM_WORLD that announces a normal exit.
constexpr int kExitTag = 32766;

/// On a single machine MPI needs only shared memory. Without the search for networks its start takes a third of the
/// time. Values that the user has set are kept.
void prefer_shared_memory_transport(const env::ProcessEnv& process) {
  if (process.spans_machines()) return;
  if (std::getenv("OMPI_MCA_pml") != nullptr || std::getenv("OMPI_MCA_btl") != nullptr) return;
  ::setenv("OMPI_MCA_pml", "ob1", 0);
  ::setenv("OMPI_MCA_btl", "vader,self", 0);
}

/// Open MPI handles SIGABRT in MPI_Init and prints 25 lines of stack trace for each rank that an exception ends, after
/// std::terminate has printed the exception. SIGBUS, SIGFPE and SIGSEGV keep Open MPI's handler, because nothing else
/// reports their place. Handlers of the program and of sanitizers are installed before MPI_Init and are not replaced.
/// A value set by the user or by `mpirun --mca opal_signal` is kept.
void keep_mpi_from_handling_abort() {
  ::setenv("OMPI_MCA_opal_signal", fmt::format("{},{},{}", SIGBUS, SIGFPE, SIGSEGV).c_str(), 0);
}

[[noreturn]] void throw_init_timeout(const env::ProcessEnv& process, const RankContext& place,
                                     std::chrono::milliseconds timeout) {
  const auto where = diagnosis_address(process, env::current_variables());
  const std::string missing = where ? diagnose_start(*where, process) : "";
  base::fail(ErrorKind::peer, place, kOperation, "waited {:g} s for the other ranks in MPI's start; {}",
             seconds(timeout), missing.empty() ? "one did not join, or cannot be reached" : missing);
}

/// In MPI_Init all ranks wait for all others, and the call cannot be abandoned, so a separate thread makes it.
void initialise(const env::ProcessEnv& process, const RankContext& place, std::chrono::milliseconds timeout) {
  prefer_shared_memory_transport(process);
  keep_mpi_from_handling_abort();
  keep_running_after_broken_pipes();
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  choose_network(process, std::chrono::steady_clock::now() + timeout / 4);  // leaves time for MPI's own start
  const auto level = run_with_deadline(deadline, [spans_machines = process.spans_machines()] {
    int provided = MPI_THREAD_SINGLE;
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided));
    if (spans_machines) wait_for_all_ranks_of_job();
    return provided;
  });
  if (!level) throw_init_timeout(process, place, timeout);
  const int provided = *level;
  if (provided == MPI_THREAD_MULTIPLE) return;
  base::fail(
      ErrorKind::environment, place, kOperation,
      "this MPI provides thread level {}, must provide MPI_THREAD_MULTIPLE ({}); use another MPI, or backend gloo",
      provided, static_cast<int>(MPI_THREAD_MULTIPLE));
}

void check_thread_level(const RankContext& place) {
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  if (level == MPI_THREAD_MULTIPLE) return;
  base::fail(ErrorKind::environment, place, kOperation,
             "the program initialised MPI at thread level {}, must be MPI_THREAD_MULTIPLE ({}); "
             "call MPI_Init_thread with it, or let Accelerate initialize MPI",
             level, static_cast<int>(MPI_THREAD_MULTIPLE));
}

void check_job(const env::ProcessEnv& process, const RankContext& place) {
  int size = 0;
  int rank = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (size == process.world_size && rank == process.rank) return;
  base::fail(ErrorKind::environment, place, kOperation,
             "MPI has rank {} of {}, the environment has rank {} of {}; start the program with mpirun or "
             "accelerate_launch, or use backend gloo",
             rank, size, process.rank, process.world_size);
}

/// Returns a communicator's ranks as ranks of another group; MPI_UNDEFINED for ranks that are not in it.
std::vector<int> ranks_in(MPI_Group other, MPI_Comm communicator) {
  MPI_Group all = MPI_GROUP_NULL;
  int size = 0;
  check_mpi(MPI_Comm_group(communicator, &all));
  check_mpi(MPI_Group_size(all, &size));
  std::vector<int> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<int> there(ranks.size());
  check_mpi(MPI_Group_translate_ranks(all, size, ranks.data(), other, there.data()));
  check_mpi(MPI_Group_free(&all));
  return there;
}

template <typename Dtype, ReduceOp op>
void reduce_elements(void* from, void* into, int* count, MPI_Datatype*) {
  reduce_into(into, from, *count, c10::CppTypeToScalarType<Dtype>::value, op);
}

template <typename Dtype>
void make_ops(std::map<at::ScalarType, std::array<MPI_Op, 5>>& all) {
  auto& ops = all[c10::CppTypeToScalarType<Dtype>::value];
  const auto make = [&](MPI_User_function* function, ReduceOp op) {
    check_mpi(MPI_Op_create(function, /*commute=*/1, &ops.at(static_cast<size_t>(op))));
  };
  make(reduce_elements<Dtype, ReduceOp::sum>, ReduceOp::sum);
  make(reduce_elements<Dtype, ReduceOp::product>, ReduceOp::product);
  make(reduce_elements<Dtype, ReduceOp::min>, ReduceOp::min);
  make(reduce_elements<Dtype, ReduceOp::max>, ReduceOp::max);
}

MPI_Datatype mpi_type(at::ScalarType dtype) {
  switch (dtype) {
    case at::kByte:
      return MPI_UINT8_T;
    case at::kChar:
      return MPI_INT8_T;
    case at::kInt:
      return MPI_INT32_T;
    case at::kLong:
      return MPI_INT64_T;
    case at::kFloat:
      return MPI_FLOAT;
    case at::kDouble:
      return MPI_DOUBLE;
    case at::kHalf:
    case at::kBFloat16:
      return MPI_UINT16_T;
    default:
      throw std::invalid_argument(std::string("the mpi backend does not reduce ") + std::string(dtype_name(dtype)));
  }
}

MPI_Op mpi_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
    case ReduceOp::mean:
      return MPI_SUM;
    case ReduceOp::product:
      return MPI_PROD;
    case ReduceOp::min:
      return MPI_MIN;
    case ReduceOp::max:
      return MPI_MAX;
  }
  return MPI_SUM;
}

}  // namespace

void check_mpi(int code) {
  if (code == MPI_SUCCESS) return;
  std::string text(MPI_MAX_ERROR_STRING, '\0');
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  text.resize(static_cast<size_t>(length));
  throw PeerLost("MPI reports " + text);
}

std::shared_ptr<MpiRuntime> MpiRuntime::start(const env::ProcessEnv& process, const RankContext& place,
                                              std::chrono::milliseconds timeout) {
  static std::mutex mutex;
  // Leaked on purpose, because it is read while the program ends.
  static auto* const keeper = new std::shared_ptr<MpiRuntime>(new MpiRuntime);
  const std::lock_guard lock(mutex);
  if (finalized()) base::fail(ErrorKind::environment, place, kOperation, "MPI was finalized already in this process");
  int initialised = 0;
  MPI_Initialized(&initialised);
  if (initialised == 0) {
    initialise(process, place, timeout);
    (*keeper)->place_ = place;
    (*keeper)->timeout_ = timeout;
    // on_exit passes the exit code: after a failure the other ranks may never call MPI_Finalize.
    ::on_exit(at_exit, keeper->get());
  } else {
    check_thread_level(place);
  }
  check_job(process, place);
  return *keeper;
}

void MpiRuntime::at_exit(int status, void* runtime) {
  if (status == 0) static_cast<MpiRuntime*>(runtime)->finalize();
}

/// Announces a normal exit on MPI_COMM_WORLD and waits for the announcements of the other ranks. Without the first,
/// ranks that wait for a message of this rank would block until their timeout, because MPI_Finalize waits for them too.
/// The second is needed because MPI_Finalize does not wait for the ranks of other hosts with some versions of Slurm and
/// PMIx, and Open MPI aborts the job if a rank sends to another one that has closed its connections.
bool MpiRuntime::exchange_exits(std::chrono::steady_clock::time_point deadline) {
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);  // ignores ranks that have already ended
  std::vector<MPI_Request> announcements;
  std::vector<int> missing;
  for (int step = 1; step < size; ++step) {
    missing.push_back((rank + step) % size);
    MPI_Isend(nullptr, 0, MPI_BYTE, missing.back(), kExitTag, MPI_COMM_WORLD,
              &announcements.emplace_back(MPI_REQUEST_NULL));
  }
  while (true) {
    int all_sent = 0;
    MPI_Testall(static_cast<int>(announcements.size()), announcements.data(), &all_sent, MPI_STATUSES_IGNORE);
    std::erase_if(missing, [](int other) {
      int announced = 0;
      MPI_Iprobe(other, kExitTag, MPI_COMM_WORLD, &announced, MPI_STATUS_IGNORE);
      return announced != 0;
    });
    if (all_sent != 0 && missing.empty()) return true;
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

bool MpiRuntime::has_ended(int64_t job_rank) {
  int come = 0;
  check_mpi(MPI_Iprobe(static_cast<int>(job_rank), kExitTag, MPI_COMM_WORLD, &come, MPI_STATUS_IGNORE));
  return come != 0;
}

void MpiRuntime::finalize() noexcept {
  if (finalized()) return;
  const auto deadline = std::chrono::steady_clock::now() + timeout_;
  try {
    if (!skip_ && exchange_exits(deadline) && run_with_deadline(deadline, [] { return MPI_Finalize(); })) return;
    if (!skip_) {
      base::log(base::LogLevel::warning, place_, "MPI_Finalize: waited {:g} s for the other ranks; left without them",
                seconds(timeout_));
    }
  } catch (const std::exception&) {  // no thread or memory; the process ends anyway
  }
  exit_without_finalize();
}

MPI_Comm MpiRuntime::duplicate_world(const env::ProcessEnv& process, const RankContext& place,
                                     std::chrono::milliseconds timeout) {
  const auto made = run_with_deadline(std::chrono::steady_clock::now() + timeout, [here = here_]() mutable {
    MPI_Comm own = MPI_COMM_NULL;
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &own));
    if (here == MPI_GROUP_NULL) {
      MPI_Comm machine = MPI_COMM_NULL;
      check_mpi(MPI_Comm_split_type(own, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &machine));
      check_mpi(MPI_Comm_group(machine, &here));
      check_mpi(MPI_Comm_free(&machine));
    }
    return std::pair(own, here);
  });
  if (made) {
    here_ = made->second;
    return made->first;
  }
  skip_finalize();
  throw_init_timeout(process, place, timeout);
}

std::vector<bool> MpiRuntime::is_on_other_host(MPI_Comm communicator) const {
  std::vector<bool> is_on_other_host;
  for (const int rank : ranks_in(here_, communicator)) is_on_other_host.push_back(rank == MPI_UNDEFINED);
  return is_on_other_host;
}

std::vector<int> MpiRuntime::job_ranks(MPI_Comm communicator) {
  MPI_Group world = MPI_GROUP_NULL;
  check_mpi(MPI_Comm_group(MPI_COMM_WORLD, &world));
  auto ranks = ranks_in(world, communicator);
  check_mpi(MPI_Group_free(&world));
  return ranks;
}

bool MpiRuntime::finalized() noexcept {
  int done = 0;
  MPI_Finalized(&done);
  return done != 0;
}

MpiRuntime::Reduction MpiRuntime::reduction(at::ScalarType dtype, ReduceOp op) {
  const bool half = dtype == at::kHalf || dtype == at::kBFloat16;
  const bool may_lose_nan = at::isFloatingType(dtype) && (op == ReduceOp::max || op == ReduceOp::min);
  if (!half && !may_lose_nan) return {mpi_type(dtype), mpi_op(op)};
  std::call_once(own_ops_made_, [this] {
    make_ops<c10::Half>(own_ops_);
    make_ops<c10::BFloat16>(own_ops_);
    make_ops<float>(own_ops_);
    make_ops<double>(own_ops_);
  });
  return {mpi_type(dtype), own_ops_.at(dtype).at(static_cast<size_t>(op))};
}

}  // namespace accelerate::comm
