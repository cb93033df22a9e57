// The Python module: which instruction set, recordings, packing, probes and the suffix trie; see operations.cpp for the rest.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#if defined(PARLAY_HAS_AMX)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "deal.h"
#include "exchange.h"
#include "operations.h"
#include "pool.h"
#include "processor.h"
#include "suffix.h"
#include "table.h"
#include "tape.h"
#include "tensor.h"

namespace nb = nanobind;

namespace parlay {
namespace {

#if defined(PARLAY_EMULATED_TILES)
bool tiles_work(const Processor&) { return true; }
#elif defined(PARLAY_HAS_AMX)
// Whether there are tiles, and Linux lets this process have their eight kilobytes of registers a thread (x86/xstate).
bool tiles_work(const Processor& here) {
  constexpr long kAskFor = 0x1023, kTileData = 18;
  return here.tiles && syscall(SYS_arch_prctl, kAskFor, kTileData) == 0;
}
#endif

std::vector<const Table*> supported() {  // best first
  std::vector<const Table*> all;
#if defined(__x86_64__)
  const Processor here;
  if (here.avx512bf16 && here.avx512vnni) {
#if defined(PARLAY_HAS_AMX)
    if (tiles_work(here)) all.push_back(table_amx());
#endif
    all.push_back(table_avx512bf16());
  }
  if (here.avx512vnni) all.push_back(table_avx512vnni());
  if (here.avx512) all.push_back(table_avx512());
  if (here.avx2) all.push_back(table_avx2());
#elif defined(__aarch64__)
  const Processor here;
  if (here.dot) {
    if (here.i8mm) {
      if (here.bf16) all.push_back(table_neonbf16());
      all.push_back(table_neoni8mm());
    }
    all.push_back(table_neondot());
  }
  all.push_back(table_neon());
#endif
  all.push_back(table_baseline());
  return all;
}

}  // namespace

const Table* table = supported().front();

namespace {

std::vector<std::string> isas() {
  std::vector<std::string> names;
  for (const Table* t : supported()) names.emplace_back(t->isa);
  return names;
}

void set_isa(const std::string& name) {
  for (const Table* t : supported())
    if (name == t->isa) {
      table = t;
      return;
    }
  throw std::invalid_argument("this machine has no instruction set '" + name + "'");
}

// Has this thread record what `work` calls. The end lies in no line of Python, between two of which an exception may come.
void record(Tape& tape, const nb::typed<nb::callable, nb::object()>& work) {
  struct End {
    ~End() { recording = nullptr; }
  } end;
  recording = &tape;
  work();
}

// Lays out blocks `[outputs, bytes]` in panels, as `linear` reads them. `book` is the codebook of a kind that has one.
void pack(const Tensor& stored, const Tensor& out, int64_t inputs, int kind, const std::optional<Tensor>& book) {
  const int64_t outputs = stored.size(0), panels = (outputs + kPanel - 1) / kPanel;
  const PackArgs a = {stored.as<uint8_t>(), out.as<uint8_t>({panels, table->packed_bytes(inputs, kind)}), inputs,
                      outputs, kind, book ? book->as<uint8_t>() : nullptr};
  nb::gil_scoped_release others;
  deal_rows(panels, outputs * inputs * 2, [&](int64_t begin, int64_t end) { table->pack(a, begin, end); });
}

// Writes numbers `[rows, 32 blocks]` in blocks, each row's one after another.
void quantise(const Tensor& plain, const Tensor& out, int kind) {
  constexpr int64_t kBlock = 32;
  const int64_t rows = plain.size(0), blocks = plain.size(1) / kBlock;
  plain.expect({rows, blocks * kBlock});
  const Numbers numbers = plain.type == Type::kF16 ? kF16 : all_bf16({&plain}) ? kBF16 : kF32;
  out.expect({rows, out.size(1)});
  const QuantiseArgs a = {plain.memory(), out.as<uint8_t>(), blocks, kind, numbers};
  nb::gil_scoped_release others;
  deal_rows(rows, rows * blocks * 1000, [&](int64_t begin, int64_t end) { table->quantise(a, begin, end); });
}

// The exchange is kept by what runs it, a recording say. `bounds` are columns.
void gather(const std::shared_ptr<Exchange>& exchange, const Tensor& own, const Tensor& out,
            std::vector<int64_t> bounds) {
  const int64_t rows = out.size(0), bytes = out.element_bytes(), rank = exchange->rank();
  if (bounds.empty()) throw std::invalid_argument("gather: a bound a rank, and one");
  if (own.type != out.type || !bytes) throw std::invalid_argument("gather: " + own.text() + " to " + out.text());
  out.expect({rows, bounds.back()});
  own.expect({rows, bounds.at(rank + 1) - bounds.at(rank)});
  for (int64_t& bound : bounds) bound *= bytes;
  const char* from = static_cast<char*>(own.memory());
  char* to = static_cast<char*>(out.memory());
  submit([=] { exchange->gather(from, to, rows, bounds); });
}

std::vector<uint32_t> philox(const std::vector<uint32_t>& counter, const std::vector<uint32_t>& key) {
  if (counter.size() != 4 || key.size() != 2) throw std::invalid_argument("philox: 4 counter words, 2 key words");
  std::vector<uint32_t> out(4);
  table->philox(counter.data(), key.data(), out.data());
  return out;
}

// The probes put every thread to work, whatever the amount.
template <class F>
double sum_over_threads(F job) {
  const int64_t threads = get_threads();
  std::vector<double> parts(threads);
  struct Context {
    F& job;
    std::vector<double>& parts;
  } context = {job, parts};
  run(
      [](void* c, int64_t share, int64_t shares) {
        auto& [job, parts] = *static_cast<Context*>(c);
        parts[share] = job(share, shares);
      },
      &context, threads, true);
  return std::accumulate(parts.begin(), parts.end(), 0.0);
}

double probe_read(const Tensor& values, int64_t ahead) {
  const char* from = static_cast<char*>(values.memory());
  const int64_t windows = values.count() * values.element_bytes() / kProbeWindow;
  nb::gil_scoped_release others;
  return sum_over_threads([&](int64_t share, int64_t shares) -> double {
    const int64_t begin = windows * share / shares, end = windows * (share + 1) / shares;
    return table->probe_read(from + begin * kProbeWindow, end - begin, ahead);
  });
}

double probe_multiply(bool bf16, int64_t rounds) {
  nb::gil_scoped_release others;
  return sum_over_threads([&](int64_t share, int64_t shares) {
    float sink;
    return table->probe_multiply(bf16, rounds * (share + 1) / shares - rounds * share / shares, &sink);
  });
}

using Tokens = std::vector<int32_t>;
using Found = std::tuple<std::vector<int32_t>, std::vector<float>, float, uint32_t>;

Found found(Guess guess) { return {std::move(guess.tokens), std::move(guess.probs), guess.score, guess.match}; }

using Tree = std::tuple<std::vector<int32_t>, std::vector<int32_t>, std::vector<float>, float>;

Tree tree(Branches made) { return {std::move(made.tokens), std::move(made.parents), std::move(made.probs), made.score}; }

}  // namespace
}  // namespace parlay

NB_MODULE(_native, m) {
  using namespace parlay;
  using nb::arg;
  nb::set_leak_warnings(false);  // what Python still holds as it ends, a module's kernels say, is no mistake
  const auto free = nb::call_guard<nb::gil_scoped_release>();
  nb::class_<Tape>(m, "Tape")
      .def(nb::init<>())
      .def("run", &Tape::run, free)
      .def("__len__", &Tape::size);
  nb::class_<SuffixTrie>(m, "SuffixTrie")
      .def(nb::init<uint32_t, bool>(), arg("depth"), arg("latest") = false)
      .def("begin", &SuffixTrie::begin)
      .def("append",
           [](SuffixTrie& t, uint32_t sequence, const Tokens& x) { t.append(sequence, x.data(), x.size()); },
           arg("sequence"), arg("tokens"))
      .def("end", &SuffixTrie::end, arg("sequence"))
      .def("remove", &SuffixTrie::remove, arg("sequence"), arg("count"))
      .def("guess", [](const SuffixTrie& t, uint32_t sequence, uint32_t most, float factor, float offset,
                       float min_prob) { return found(t.guess(sequence, {most, factor, offset, min_prob})); },
           arg("sequence"), arg("most"), arg("factor"), arg("offset"), arg("min_prob"))
      .def("guess_after", [](const SuffixTrie& t, const Tokens& x, uint32_t most, float factor, float offset,
                             float min_prob) {
        return found(t.guess_after(x.data(), x.size(), {most, factor, offset, min_prob}));
      }, arg("tokens"), arg("most"), arg("factor"), arg("offset"), arg("min_prob"))
      .def("branch", [](const SuffixTrie& t, uint32_t sequence, uint32_t most, float factor, float offset,
                        float min_prob) { return tree(t.branch(sequence, {most, factor, offset, min_prob})); },
           arg("sequence"), arg("most"), arg("factor"), arg("offset"), arg("min_prob"))
      .def("branch_after", [](const SuffixTrie& t, const Tokens& x, uint32_t most, float factor, float offset,
                              float min_prob) {
        return tree(t.branch_after(x.data(), x.size(), {most, factor, offset, min_prob}));
      }, arg("tokens"), arg("most"), arg("factor"), arg("offset"), arg("min_prob"))
      .def("lookup", &SuffixTrie::lookup, arg("sequence"), arg("least"), arg("most"), arg("longest"))
      .def("count", [](const SuffixTrie& t, const Tokens& x) { return t.count(x.data(), x.size()); }, arg("tokens"))
      .def_prop_ro("bytes", &SuffixTrie::bytes);
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const RankLost& lost) {
      PyErr_SetString(nb::module_::import_("parlay.errors").attr("RankError").ptr(), lost.what());
    }
  });
  nb::class_<Exchange>(m, "Exchange")
      .def(nb::init<int, int64_t, int64_t, int64_t, double>(), arg("file"), arg("rank"), arg("size"), arg("room"),
           arg("patience"))
      .def_static("footprint", &Exchange::footprint, arg("size"), arg("room"))
      .def("gather", &gather, arg("own"), arg("out"), arg("bounds"))
      .def("abandon", &Exchange::abandon);
  nb::class_<Ring>(m, "Ring")
      .def(nb::init<int, int64_t, int64_t, int64_t, int64_t, double>(), arg("file"), arg("rank"), arg("size"),
           arg("places"), arg("room"), arg("patience"))
      .def_static("footprint", &Ring::footprint, arg("size"), arg("places"), arg("room"))
      .def("send", [](Ring& ring, const Tensor& message) {
        const char* from = static_cast<char*>(message.memory());
        const int64_t bytes = message.count() * message.element_bytes();
        nb::gil_scoped_release others;
        ring.send(from, bytes);
      }, arg("states"))
      .def("receive", [](Ring& ring, const Tensor& message) {
        char* to = static_cast<char*>(message.memory());
        const int64_t bytes = message.count() * message.element_bytes();
        nb::gil_scoped_release others;
        ring.receive(to, bytes);
      }, arg("states"))
      .def("abandon", &Ring::abandon);
  m.def("record", &record, arg("tape"), arg("work"));
  m.def("recording", [] { return recording != nullptr; });
  bind_operations(m);
  m.def("packed_bytes", [](int64_t inputs, int kind) { return table->packed_bytes(inputs, kind); }, arg("inputs"),
        arg("kind"));
  m.def("pack", &pack, arg("stored"), arg("out"), arg("inputs"), arg("kind"),
        arg("book").none());
  m.def("quantise", &quantise, arg("plain"), arg("out"), arg("kind"));
  m.def("philox", &philox, arg("counter"), arg("key"));
  m.def("probe_read", &probe_read, arg("values"), arg("ahead"));
  m.def("probe_multiply", &probe_multiply, arg("bf16"), arg("rounds"));
  m.def("isa", [] { return table->isa; });
  m.def("isas", &isas);
  m.def("set_isa", &set_isa, arg("name"));
  m.def("set_threads", &set_threads, arg("threads"), free);
  m.def("threads", &get_threads);
}
