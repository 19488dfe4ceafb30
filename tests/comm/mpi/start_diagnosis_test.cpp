// SPDX-License-Identifier: Apache-2.0
#include "accelerate/comm/mpi/start_diagnosis.hpp"

#include <map>
#include <thread>

#include "tests/testing.hpp"

using accelerate::comm::diagnose_start;
using accelerate::comm::diagnosis_address;
using accelerate::comm::Endpoint;
using accelerate::env::ProcessEnv;

namespace {

const std::string kUri = "OMPI_MCA_orte_hnp_uri";
const ProcessEnv kOneOfThree{.rank = 1, .world_size = 3, .job_id = "309526529"};

std::string host_of_place(const std::string& uri) {
  const auto place = diagnosis_address(kOneOfThree, {{kUri, uri}});
  return place ? place->host : "nowhere";
}

/// Results of the ranks that join the diagnosis, in a job of three ranks.
std::map<int64_t, std::string> roll_of(const std::vector<int64_t>& ranks) {
  const Endpoint place{"127.0.0.1", accelerate::comm::port_of(accelerate::comm::listen_on({"127.0.0.1", 0}, {}))};
  std::map<int64_t, std::string> reports;
  for (const int64_t rank : ranks) reports[rank];
  std::vector<std::thread> threads;
  for (auto& [rank, text] : reports) {
    threads.emplace_back([&, rank = rank, text = &text] {
      *text = diagnose_start(place, {.rank = rank, .world_size = 3, .job_id = "a job"});
    });
  }
  for (auto& thread : threads) thread.join();
  return reports;
}

}  // namespace

TEST_CASE("ranks of several machines use MASTER_ADDR for the diagnosis, else mpirun's machine") {
  ProcessEnv process = kOneOfThree;
  process.master_addr = "gpu-a";
  process.master_port = 29500;
  const auto given = diagnosis_address(process, {{kUri, "1.0;tcp://10.77.0.1:33615"}});
  REQUIRE(given);
  CHECK(text(*given) == "gpu-a:29500");
  CHECK(host_of_place("309526528.0;tcp://10.77.0.1:33615") == "10.77.0.1");
  CHECK(host_of_place("309526528.0;tcp6://[fd77::1]:33615") == "fd77::1");
}

TEST_CASE("the diagnosis is off on one machine and without an address that all ranks know") {
  CHECK(host_of_place("309526528.0;tcp://10.77.0.1,10.99.0.1:33615") == "nowhere");
  CHECK(host_of_place("309526528.0;tcp://10.77.0.1:33615;tcp6://[fd77::1]:33616") == "nowhere");
  CHECK_FALSE(diagnosis_address(kOneOfThree, {}));
  ProcessEnv process = kOneOfThree;
  process.local_world_size = 3;
  CHECK_FALSE(diagnosis_address(process, {{kUri, "1.0;tcp://10.77.0.1:33615"}}));
}

TEST_CASE("mpirun's ranks compute the same port, and another job another one") {
  const auto port = [](const std::string& job_id) {
    ProcessEnv process = kOneOfThree;
    process.job_id = job_id;
    return diagnosis_address(process, {{kUri, "1.0;tcp://10.77.0.1:33615"}})->port;
  };
  CHECK(port("309526529") == port("309526529"));
  CHECK(port("309526529") != port("309526530"));
}

TEST_CASE("the ranks in the diagnosis name the missing rank") {
  const auto reports = roll_of({0, 1});
  CHECK(reports.at(0) == "no response from rank 2");
  CHECK(reports.at(1) == "no response from rank 2");
}

TEST_CASE("the other ranks report a missing rank 0") {
  CHECK(roll_of({1, 2}) ==
        std::map<int64_t, std::string>{{1, "no response from rank 0"}, {2, "no response from rank 0"}});
}

TEST_CASE("the diagnosis blames MPI if no rank is missing") {
  CHECK(roll_of({0, 1, 2}).at(0) == "all ranks have joined, but MPI does not connect them");
}
