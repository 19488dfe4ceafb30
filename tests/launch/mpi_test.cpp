// SPDX-License-Identifier: Apache-2.0
// MPI ranks of the real Open MPI, started without mpirun.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "accelerate/base/error.hpp"
#include "launch/plan/plan.hpp"
#include "launch/run/supervise.hpp"
#include "tests/launch/run.hpp"
#include "tests/launch/scratch.hpp"

using testing::Child;
using testing::launch;
using testing::launcher;
using testing::Scratch;

namespace {

const std::string program = TEST_BINARY_DIR "/bin/mpi_ranks";

std::vector<std::string> sorted_lines(const std::string& text, const std::string& start) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    if (line.starts_with(start)) lines.push_back(line);
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

std::vector<std::string> hello(int ranks) {
  std::vector<std::string> lines;
  for (int rank = 0; rank < ranks; ++rank) {
    lines.push_back("rank " + std::to_string(rank) + " of " + std::to_string(ranks) + ", sum " +
                    std::to_string(ranks * (ranks - 1) / 2) + ", thread multiple yes");
  }
  return lines;
}

/// Folder of the ranks' shared memory, as printed by a rank: "shm FOLDER".
std::string shared_memory_of(const std::string& out) {
  const auto at = out.find("shm ");
  return at == std::string::npos ? "" : out.substr(at + 4, out.find('\n', at) - at - 4);
}

/// Variables that allow root to run mpirun.
const accelerate::env::Variables as_root{{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}};

}  // namespace

TEST_CASE("ranks have MPI's rank and world size, with every thread level") {
  for (const int ranks : {1, 2, 4}) {
    const Scratch scratch;
    const auto ran =
        launch({"--backend", "mpi", "--num_processes", std::to_string(ranks), program}, scratch.variables());
    CAPTURE(ran.err);
    CHECK(ran.code == 0);
    CHECK(sorted_lines(ran.out, "rank ") == hello(ranks));
    CHECK(scratch.empty());
  }
}

TEST_CASE("a host name may have the maximum length") {
  const auto ran = launch({"--backend", "mpi", "--num_processes", "2", program},
                          {{"LD_PRELOAD", TEST_BINARY_DIR "/tests/launch/libfake_host.so"},
                           {"FAKE_HOST", std::string(64, 'a')},
                           {"ASAN_OPTIONS", "verify_asan_link_order=0"}});
  CAPTURE(ran.err);
  CHECK(ran.code == 0);
  CHECK(sorted_lines(ran.out, "rank ") == hello(2));
}

TEST_CASE("mpi is the default for several CPU ranks") {
  const auto ran = launch({"--cpu", "--num_processes", "2", program});
  CHECK(ran.code == 0);
  CHECK(sorted_lines(ran.out, "rank ") == hello(2));
}

TEST_CASE("the environment selects mpi without an option") {
  const auto ran = launch({"--num_processes", "2", program}, {{"ACCELERATE_BACKEND", "mpi"}});
  CHECK(ran.code == 0);
  CHECK(sorted_lines(ran.out, "rank ") == hello(2));
}

TEST_CASE("a broken, old or failing libpmix is reported, and nothing remains") {
  const auto with = [](const std::string& folder, const std::string& fault) {
    const Scratch scratch;
    auto variables = scratch.variables();
    variables["LD_LIBRARY_PATH"] = TEST_BINARY_DIR "/tests/launch/" + folder;
    variables["FAKE_PMIX"] = fault;
    variables["PATH"] = "/no mpirun here";
    const auto ran = launch({"--backend", "mpi", "--num_processes", "2", "/bin/true"}, variables);
    CHECK(ran.code == 1);
    CHECK(scratch.empty());
    return ran.err;
  };
  CHECK(with("fake_pmix", "PMIx_server_init") ==
        "accelerate_launch: PMIx_server_init failed: FAKED; --backend gloo needs no PMIx\n");
  CHECK(with("fake_pmix", "PMIx_generate_regex") ==
        "accelerate_launch: PMIx_generate_regex failed: FAKED; --backend gloo needs no PMIx\n");
  CHECK(with("fake_pmix", "blob") ==
        "accelerate_launch: --num_processes 2 is too many for --backend mpi on one machine; use gloo\n");
  CHECK(
      with("old_pmix", "") ==
      "accelerate_launch: backend mpi is requested, but libpmix.so.2 has no PMIx_generate_ppn, so it is too old (PMIx "
      "4 is needed), and mpirun is not in PATH; backend gloo works without\n");
}

TEST_CASE("without libpmix mpirun starts mpi ranks; without both mpi is an error, and gloo the default") {
  const Scratch scratch;
  std::ofstream(scratch.path + "/libpmix.so.2") << "not a library";
  accelerate::env::Variables variables{{"LD_LIBRARY_PATH", scratch.path}, {"PATH", scratch.path}};
  const auto nobody = launch({"--backend", "mpi", "--num_processes", "2", "/bin/true"}, variables);
  CHECK(nobody.code == 1);
  CHECK(nobody.err ==
        "accelerate_launch: backend mpi is requested, but libpmix.so.2 was not found (Debian package libpmix2), and "
        "mpirun is not in PATH; backend gloo works without\n");
  std::ofstream(scratch.path + "/mpirun") << "#!/bin/sh\nprintf '%s ' \"$@\"\n";
  std::filesystem::permissions(scratch.path + "/mpirun", std::filesystem::perms::owner_all);
  const auto requested = launch({"--backend", "mpi", "--num_processes", "2", "/bin/true", "a"}, variables);
  CHECK(requested.code == 0);
  CHECK(requested.out.starts_with("-n 2 --oversubscribe -x "));
  CHECK(requested.out.ends_with(" /bin/true a "));
  CHECK(requested.err ==
        "accelerate_launch: libpmix.so.2 was not found (Debian package libpmix2); mpirun starts the ranks\n");
  auto batch = variables;
  for (const auto& [name, value] :
       accelerate::env::Variables{{"SLURM_JOB_ID", "1"}, {"SLURM_JOB_NUM_NODES", "1"}, {"SLURM_NTASKS", "3"}}) {
    batch[name] = value;
  }
  CHECK(launch({"--backend", "mpi", "/bin/true"}, batch).out.starts_with("-n 3 --oversubscribe "));
  const auto not_requested = launch({"--cpu", "--num_processes", "2", "/bin/true"}, variables);
  CHECK(not_requested.code == 0);
  CHECK(not_requested.err ==
        "accelerate_launch: libpmix.so.2 was not found (Debian package libpmix2); the ranks use gloo, which is slower "
        "than mpi on one machine\n");
}

TEST_CASE("more ranks than processors cause one warning, yield, and finish") {
  const auto on_one = [](std::vector<std::string> words) {
    words.insert(words.begin(), {"taskset", "-c", "0", TEST_BINARY_DIR "/bin/accelerate_launch", "--main_process_port",
                                 "0", "--backend", "mpi", "--num_processes", "3"});
    return Child(words).wait();
  };
  const auto ran = on_one({program});
  CHECK(ran.code == 0);
  CHECK(sorted_lines(ran.out, "rank ") == hello(3));
  CHECK(ran.err == "accelerate_launch: 3 ranks share 1 processor, which is slower than one rank on each\n");
  CHECK(on_one({"sh", "-c", "echo $OMPI_MCA_mpi_yield_when_idle"}).out == "1\n1\n1\n");
}

TEST_CASE("mpirun starts ranks on request, and a launcher around each adds labels and log files") {
  const Scratch scratch;
  const auto ran = launch(
      {"--runner", "mpirun", "--backend", "mpi", "--num_processes", "2", "--label", "--log_dir", scratch.path, program},
      as_root);
  CAPTURE(ran.err);
  CHECK(ran.code == 0);
  CHECK(sorted_lines(ran.out, "[rank ") ==
        std::vector<std::string>{"[rank 0] " + hello(2)[0], "[rank 1] " + hello(2)[1]});
  std::stringstream log;
  log << std::ifstream(scratch.path + "/rank_1.log").rdbuf();
  CHECK(log.str() == hello(2)[1] + "\n");
}

TEST_CASE("a failed rank under mpirun is reported with number, host, process, last lines, error and mpirun's code") {
  const auto failed =
      launch({"--runner", "mpirun", "--backend", "mpi", "--num_processes", "2", program, "exit"}, as_root);
  CAPTURE(failed.err);
  CHECK(failed.code == 3);
  CHECK(failed.err.find("accelerate_launch: worker 1 (" + accelerate::base::host_name() + ", pid ") !=
        std::string::npos);
  CHECK(failed.err.find(") ended with exit code 3. Its last lines follow.\nrank 1 of 2") != std::string::npos);
  CHECK(failed.err.find("accelerate_launch: worker 0 (") == std::string::npos);  // stopped because of the failure
  CHECK(failed.err.find("accelerate_launch: mpirun (") != std::string::npos);
  CHECK(failed.err.find(") ended with exit code 3.\n") != std::string::npos);
}

TEST_CASE("each rank under mpirun has an error file, which is removed at its end") {
  const testing::Scratch scratch;
  auto variables = as_root;
  variables["TMPDIR"] = scratch.path;
  const auto ran = launch({"--runner", "mpirun", "--backend", "mpi", "--num_processes", "2", "sh", "-c",
                           "echo '{\"message\": \"of '$OMPI_COMM_WORLD_RANK'\"}' > $TORCHELASTIC_ERROR_FILE; "
                           "echo file $TORCHELASTIC_ERROR_FILE; [ $OMPI_COMM_WORLD_RANK = 0 ] || exit 3; sleep 300"},
                          variables);
  CAPTURE(ran.err);
  CHECK(ran.code == 3);
  const auto files = sorted_lines(ran.out, "file ");
  REQUIRE(files.size() == 2);
  CHECK(files[0] != files[1]);
  CHECK(ran.err.find("Its error follows.\nof 1\n") != std::string::npos);
  CHECK(ran.err.find("of 0\n") == std::string::npos);
  CHECK(scratch.empty());
}

TEST_CASE("ranks under mpirun are bound to processors on request, and too many ranks cause a warning") {
  const auto ran = launch({"--runner", "mpirun", "--backend", "mpi", "--num_processes", "2", "--enable_cpu_affinity",
                           "sh", "-c", "grep Cpus_allowed_list /proc/self/status"},
                          as_root);
  CAPTURE(ran.err);
  CHECK(ran.code == 0);
  const auto lists = sorted_lines(ran.out, "Cpus_allowed_list");
  REQUIRE(lists.size() == 2);
  if (std::thread::hardware_concurrency() > 1) CHECK(lists[0] != lists[1]);
  const std::string many = std::to_string(std::thread::hardware_concurrency() + 1);
  const auto crowd = launch({"--runner", "mpirun", "--backend", "mpi", "--num_processes", many, "true"}, as_root);
  CHECK(crowd.err.starts_with("accelerate_launch: " + many + " ranks share "));
}

TEST_CASE("a TMPDIR without write access is named") {
  const auto with = [](const std::string& folder) {
    const auto ran = launch({"--backend", "mpi", "--num_processes", "2", "true"}, {{"TMPDIR", folder}});
    CHECK(ran.code == 1);
    return ran.err;
  };
  CHECK(
      with("/no/such") ==
      "accelerate_launch: TMPDIR is '/no/such', where no folder can be created: No such file or directory; set it to a "
      "folder that can be written\n");
  CHECK(with("/dev/null") ==
        "accelerate_launch: TMPDIR is '/dev/null', where no folder can be created: Not a directory; set it to a folder "
        "that can be written\n");
}

TEST_CASE("MPI_Abort stops all ranks, and the launcher exits with its code") {
  const Scratch scratch;
  const auto ran = launch({"--backend", "mpi", "--num_processes", "2", program, "abort"}, scratch.variables());
  CAPTURE(ran.err);
  CHECK(ran.code == 7);
  CHECK(ran.err.find(") ended first, MPI_Abort(7); the others were stopped. Its last lines follow.\n") !=
        std::string::npos);
  CHECK(ran.err.find("accelerate_launch: worker 1 (") != std::string::npos);
  CHECK(scratch.empty());
}

TEST_CASE("a crashed rank is named, and the rank that waits for it is stopped") {
  const Scratch scratch;
  const auto ran = launch({"--backend", "mpi", "--num_processes", "2", program, "crash"}, scratch.variables());
  CAPTURE(ran.err);
  CHECK(ran.code == 128 + SIGSEGV);
  CHECK(ran.err.find(") ended first, signal 11 (segmentation fault); the others were stopped.") != std::string::npos);
  CHECK(scratch.empty());
}

TEST_CASE("the launcher exits with a rank's exit code") {
  CHECK(launch({"--backend", "mpi", "--num_processes", "2", program, "exit"}).code == 3);
}

TEST_CASE("a rank that exits without MPI_Finalize has failed, for any exit code") {
  const auto ran = launch({"--backend", "mpi", "--num_processes", "2", program, "unfinished"});
  CHECK(ran.code == 1);
  CHECK(ran.err.find(") ended first, exit code 0 without MPI_Finalize; the others were stopped.") != std::string::npos);
}

TEST_CASE("a rank that exits with 0 before MPI_Init is named at once, and waiting ranks are stopped") {
  const auto ran = launch({"--backend", "mpi", "--num_processes", "3", program, "early"});
  CAPTURE(ran.err);
  CHECK(ran.code == 1);
  CHECK(ran.err.find("accelerate_launch: worker 2 (") != std::string::npos);
  CHECK(
      ran.err.find(") ended first, exit code 0 before MPI_Init, where others wait for it; the others were stopped. It "
                   "printed nothing.\n") != std::string::npos);
}

TEST_CASE("a rank that runs out of memory in MPI_Init is named, and waiting ranks are stopped") {
  // From the size that the loader needs to the size that MPI's shared memory needs; in between it may just fit.
  for (const std::string kibibytes : {"8000", "20000", "80000", "150000"}) {
    CAPTURE(kibibytes);
    const auto ran = launch({"--cpu", "--num_processes", "2", "--backend", "mpi", "sh", "-c",
                             "[ $RANK = 0 ] || ulimit -v " + kibibytes + "; exec " + program + " hello"});
    CAPTURE(ran.err);
    const bool has_reader_info = ran.err.find("accelerate_launch: worker 1 (") != std::string::npos;
    CHECK(has_reader_info == (ran.code != 0));
    CHECK(ran.err.find("did not reach MPI_Init") == std::string::npos);
    if (kibibytes.size() < 5) CHECK(ran.code != 0);
  }
}

TEST_CASE("a rank that misses MPI_Init is named after the timeout, and the job ends") {
  const auto ran = launch({"--backend", "mpi", "--num_processes", "2", program, "away"}, {{"ACCELERATE_TIMEOUT", "1"}});
  CAPTURE(ran.err);
  CHECK(ran.code == 1);
  CHECK(ran.err.find("accelerate_launch: worker 1 did not reach MPI_Init within 3 s, where others wait (") !=
        std::string::npos);
  CHECK(ran.err.find("); all were stopped. It printed nothing.\n") != std::string::npos);
}

TEST_CASE("programs without MPI run unaffected by MPI's variables") {
  const auto ran = launch({"--backend", "mpi", "--num_processes", "2", "true"});
  CHECK(ran.code == 0);
  CHECK(ran.err == "");
}

TEST_CASE("a signal ends ranks that wait in MPI, and nothing remains") {
  const Scratch scratch;
  Child child(launcher({"--backend", "mpi", "--main_process_port", "0", "--num_processes", "2", "sh", "-c",
                        "echo shm $OMPI_MCA_btl_vader_backing_directory; exec " + program + " hang"}),
              scratch.variables());
  REQUIRE(child.wait_for("rank 0 of 2"));
  REQUIRE(child.wait_for("rank 1 of 2"));
  const std::string shared = shared_memory_of(child.out());
  REQUIRE(std::filesystem::is_directory(shared));
  CHECK_FALSE(std::filesystem::is_empty(shared));  // the ranks' segments
  kill(child.pid(), SIGTERM);
  CHECK(child.wait().code == 128 + SIGTERM);
  CHECK(scratch.empty());
  CHECK_FALSE(std::filesystem::exists(shared));
}

TEST_CASE("the next launcher removes the remains of a launcher and guardian that were killed together") {
  const Scratch scratch;
  {
    Child child(launcher({"--backend", "mpi", "--main_process_port", "0", "--num_processes", "2", "sh", "-c",
                          "echo guardian $PPID; exec sleep 300"}),
                scratch.variables());
    REQUIRE(child.wait_for("guardian "));
    const auto guardian = static_cast<pid_t>(std::stol(child.out().substr(child.out().find(' ') + 1)));
    kill(child.pid(), SIGSTOP);
    kill(guardian, SIGKILL);
    kill(child.pid(), SIGKILL);
  }
  CHECK_FALSE(scratch.empty());
  CHECK(launch({"--backend", "mpi", "true"}, scratch.variables()).code == 0);
  CHECK(scratch.empty());
}

TEST_CASE("two concurrent launchers do not affect each other") {
  Child first(launcher({"--backend", "mpi", "--main_process_port", "0", "--num_processes", "2", program}));
  Child second(launcher({"--backend", "mpi", "--main_process_port", "0", "--num_processes", "3", program}));
  const auto two = first.wait();
  const auto three = second.wait();
  CHECK(two.code == 0);
  CHECK(three.code == 0);
  CHECK(sorted_lines(two.out, "rank ") == hello(2));
  CHECK(sorted_lines(three.out, "rank ") == hello(3));
}

TEST_CASE("variables of mpirun, Slurm or torchrun in the environment do not affect the ranks") {
  const auto ran = launch({"--runner", "local", "--backend", "mpi", "--num_processes", "2", program},
                          {{"OMPI_COMM_WORLD_RANK", "3"},
                           {"OMPI_COMM_WORLD_SIZE", "8"},
                           {"OMPI_MCA_ess", "pmi"},
                           {"OMPI_MCA_orte_ess_num_procs", "8"},
                           {"PMIX_RANK", "3"},
                           {"PMIX_NAMESPACE", "4242"},
                           {"PMIX_SERVER_URI21", "4242.0;tcp4://127.0.0.1:1"},
                           {"PMI_RANK", "3"},
                           {"SLURM_JOBID", "1"},
                           {"SLURM_PROCID", "3"},
                           {"SLURM_STEP_ID", "0"},
                           {"SLURM_NTASKS", "8"},
                           {"SLURM_NODELIST", "node[1-4]"},
                           {"TORCHELASTIC_RESTART_COUNT", "3"}});
  CAPTURE(ran.err);
  CHECK(ran.code == 0);
  CHECK(sorted_lines(ran.out, "rank ") == hello(2));
}

TEST_CASE("every launcher inside mpirun starts its own job") {
  const auto ran =
      Child({"mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", TEST_BINARY_DIR "/bin/accelerate_launch",
             "--backend", "mpi", "--main_process_port", "0", "--num_processes", "2", program})
          .wait();
  CAPTURE(ran.err);
  CHECK(ran.code == 0);
  auto twice = hello(2);
  const auto once = hello(2);
  twice.insert(twice.end(), once.begin(), once.end());
  std::sort(twice.begin(), twice.end());
  CHECK(sorted_lines(ran.out, "rank ") == twice);
}

TEST_CASE("crashed MPI ranks restart ten times, each with a new PMIx server, and nothing remains") {
  const Scratch scratch;
  const auto plan_of = [](int64_t restart) {
    auto variables = accelerate::env::current_variables();
    return accelerate::launch::plan(
        {.settings = {.backend = "mpi"}, .num_processes = 2, .command = {program, restart < 10 ? "crash" : "hello"}},
        {}, variables, {.port = 29500, .serve_mpi = true, .restart_count = restart});
  };
  const std::string out = scratch.path + "/out";
  const int fd = open(out.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  REQUIRE(fd >= 0);
  setenv("TMPDIR", scratch.path.c_str(), 1);
  const int code = accelerate::launch::supervise(
      plan_of, {.restarts = {.max_restarts = 10, .backoff = std::chrono::milliseconds(1), .max_identical_failures = 0},
                .out = fd,
                .err = fd});
  unsetenv("TMPDIR");
  close(fd);
  CHECK(code == 0);
  std::stringstream text;
  text << std::ifstream(out).rdbuf();
  std::string whole = text.str();
  size_t reports = 0;
  for (size_t at = 0; (at = whole.find("ended first, signal 11", at)) != std::string::npos; ++at) ++reports;
  CHECK(reports == 10);
  std::filesystem::remove(out);
  CHECK(scratch.empty());
}
