// SPDX-License-Identifier: Apache-2.0
#include "tests/data/sources/files.hpp"
//
#include "accelerate/data/sources/idx.hpp"
#include "accelerate/data/sources/mnist.hpp"
#include "tests/data/sources/idx_bytes.hpp"

using accelerate::ErrorKind;
using accelerate::data::fashion_mnist;
using accelerate::data::mnist;
using accelerate::data::read_idx;
using accelerate::data::Split;
using namespace test_files;

TEST_CASE("a missing folder or file is refused with the four file names and the remedy") {
  const Folder folder;
  const std::string remedy =
      "; put train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte there, "
      "gzipped (.gz) or not, or run ./run data ";
  CHECK(message([&] { (void)mnist("/nowhere"); }, ErrorKind::io) ==
        "mnist: /nowhere is not a folder" + remedy + "mnist, which downloads them");
  write(folder.path / "train-images-idx3-ubyte", idx({2, 28, 28}));
  CHECK(message([&] { (void)fashion_mnist(folder.path); }, ErrorKind::io) ==
        "fashion-mnist: " + folder.path.string() +
            " has no train-labels-idx1-ubyte and no train-labels.idx1-ubyte, gzipped (.gz) or not" + remedy +
            "fashion-mnist, which downloads them");
  CHECK(message([&] { (void)read_idx("/nowhere/x", 1); }, ErrorKind::io) ==
        "read_idx: /nowhere/x cannot be opened: No such file or directory");
  CHECK(message([&] { (void)read_idx(folder.path, 1); }, ErrorKind::io) ==
        "read_idx: " + folder.path.string() + " cannot be read: Is a directory");
}

TEST_CASE("files may have a dot in their names, gzipped or not, mixed with the original names") {
  const Folder folder;
  write(folder.path / "train-images.idx3-ubyte", idx({2, 28, 28}));
  write(folder.path / "train-labels.idx1-ubyte", idx({2}));
  write_gzip(folder.path / "t10k-images.idx3-ubyte.gz", idx({3, 28, 28}));
  write(folder.path / "t10k-labels-idx1-ubyte", idx({3}));
  CHECK(mnist(folder.path, {.batch_size = 2}).begin()->target.equal(torch::tensor({0, 1}, torch::kLong)));
  CHECK(mnist(folder.path, {}, Split::test).sample_count() == 3);
  CHECK(fashion_mnist(folder.path, {}, Split::test).sample_count() == 3);
}

TEST_CASE("a folder with a file's name is ignored, and the original name has priority over the dotted one") {
  const Folder folder;
  fs::create_directories(folder.path / "t10k-images-idx3-ubyte");  // as in Kaggle's copy
  fs::create_directories(folder.path / "t10k-labels-idx1-ubyte.gz");
  write(folder.path / "t10k-images.idx3-ubyte", idx({2, 28, 28}));
  write(folder.path / "t10k-labels.idx1-ubyte", idx({2}));
  CHECK(mnist(folder.path, {}, Split::test).sample_count() == 2);
  write(folder.path / "train-images-idx3-ubyte", idx({4, 28, 28}));
  write(folder.path / "train-images.idx3-ubyte", "not read");
  write(folder.path / "train-labels-idx1-ubyte", idx({4}));
  CHECK(mnist(folder.path).sample_count() == 4);
}
