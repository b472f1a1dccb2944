//go:build cgo

package main_test

import (
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"symmem/internal/softgpu"
	"symmem/internal/sys/systest"
)

// paths locates the library, the C program that tests it, and the symmem command.
type paths struct{ library, program, command string }

var binaries struct {
	once   sync.Once
	folder string
	paths  paths
	err    error
}

func TestMain(m *testing.M) {
	os.Setenv("SYMMEM_CUDA", "/nowhere/libcuda.so.1") // use no GPU of the machine
	status := m.Run()
	if binaries.folder != "" {
		_ = os.RemoveAll(binaries.folder)
	}

	os.Exit(status)
}

// build returns the paths of the binaries, which the first call compiles.
func build(t testing.TB) paths {
	t.Helper()
	binaries.once.Do(func() {
		if binaries.folder, binaries.err = os.MkdirTemp("", "libsymmem"); binaries.err != nil {
			return
		}

		b := paths{
			library: filepath.Join(binaries.folder, "libsymmem.so"),
			program: filepath.Join(binaries.folder, "drive"),
			command: filepath.Join(binaries.folder, "symmem"),
		}
		sources, _ := filepath.Glob("testdata/*.c")
		compile := append([]string{
			"-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-I.", "-o", b.program,
		}, sources...)
		for _, c := range []*exec.Cmd{
			exec.Command("./build.sh", b.library),
			exec.Command("go", "build", "-o", b.command, "symmem/cmd/symmem"),
			exec.Command("gcc", append(compile, b.library, "-lpthread", "-ldl",
				"-Wl,-rpath,"+binaries.folder)...),
		} {
			if out, err := c.CombinedOutput(); err != nil {
				binaries.err = fmt.Errorf("%v: %w\n%s", c.Args, err, out)
				return
			}
		}

		binaries.paths = b
	})
	if binaries.err != nil {
		t.Fatal(binaries.err)
	}

	return binaries.paths
}

// deadline is the time after which a program that hangs is killed. Every scenario takes less than a
// tenth of that time.
const deadline = 100 * time.Second

// runScenario runs a scenario on some ranks, which must succeed, and returns their output.
func runScenario(t testing.TB, ranks int, scenario string, environment ...string) string {
	t.Helper()
	b := build(t)
	c := systest.Command(t, deadline, b.command, "launch", "-n", fmt.Sprint(ranks), "--", b.program,
		scenario)
	c.Env = append(os.Environ(), "SYMMEM_ATTACH_EARLY_START=1")
	c.Env = append(c.Env, environment...)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%s on %d ranks: %v\n%s", scenario, ranks, err, out)
	}

	return string(out)
}

var scenarios = []struct {
	name, scenario string
	ranks          []int
	lostCount      int // ranks that do not complete the scenario
}{
	{
		name:     "sums are right on every path, and new memory changes the words and windows",
		scenario: "sums", ranks: []int{1, 2, 4},
	},
	{
		name:     "pads open and fail on all ranks, and errors name the rank and the site",
		scenario: "pads", ranks: []int{1, 2, 4},
	},
	{
		name:     "messages have tags and sources, and an unmatched message is reported",
		scenario: "messages", ranks: []int{2, 4},
	},
	{
		name:     "all-to-all sends parts of any size, and splits that differ are reported",
		scenario: "splits", ranks: []int{1, 2, 4},
	},
	{
		name:     "operations have a root or parts of different sizes, and counts are compared",
		scenario: "rooted", ranks: []int{1, 2, 4},
	},
	{
		name:     "rows go to the ranks of their experts, and come back",
		scenario: "route", ranks: []int{1, 2, 4},
	},
	{
		name:     "calls wait for their results on any thread, and the caller can end the wait",
		scenario: "waits", ranks: []int{1, 2, 4},
	},
	{
		name:     "groups are identified by name and ranks; handles are not reused",
		scenario: "groups", ranks: []int{2, 4},
	},
	{
		name:     "PyTorch's segments share windows, and each pool has its own allocator functions",
		scenario: "pools", ranks: []int{1, 2},
	},
	{
		name:     "new memory of one pool is registered, and differences between ranks are reported",
		scenario: "pending", ranks: []int{1, 2, 4},
	},
	{name: "misuse returns errors without side effects", scenario: "misuse", ranks: []int{1, 2}},
	{name: "a panic is returned as an error", scenario: "panics", ranks: []int{1, 2}},
	{
		name:     "the order of frees does not affect the history",
		scenario: "freed-order", ranks: []int{2, 4},
	},
	{
		name:     "a divergence error has the call sites of both sides",
		scenario: "diverge", ranks: []int{2, 4},
	},
	{
		name:     "buffers at different places are detected before a sum, with call sites",
		scenario: "mismatch", ranks: []int{2, 4},
	},
	{name: "a late rank is reported", scenario: "late", ranks: []int{2, 4}},
	{
		name:     "a query for the cause of a fault does not wait for a stopped rank",
		scenario: "unexplained", ranks: []int{2},
	},
	{name: "a lost rank is reported", scenario: "lost", ranks: []int{2, 4}, lostCount: 1},
	{
		name:     "calls in a forked child fail, and the parent is not affected",
		scenario: "forks", ranks: []int{2},
	},
	{
		name:     "a thread allocates while it holds a lock and other ranks wait",
		scenario: "locked", ranks: []int{1, 2},
	},
	{
		name:     "threads allocate concurrently, and each has its own last error",
		scenario: "threads", ranks: []int{2},
	},
	{
		name:     "signal handlers of the program run, even under many signals",
		scenario: "signals", ranks: []int{2},
	},
	{name: "a process exits with live buffers", scenario: "exit-live", ranks: []int{2}},
	{
		name:     "a process exits while one of its threads waits",
		scenario: "exit-waiting", ranks: []int{2, 4},
	},
	{
		name:     "worlds are opened and closed one by one, some by two ranks only",
		scenario: "worlds", ranks: []int{2, 4},
	},
	{
		name:     "a lost rank makes only the worlds that it belongs to fail",
		scenario: "worlds-lost", ranks: []int{3}, lostCount: 1,
	},
	{
		name:     "a late rank makes the group with the short timeout fail",
		scenario: "timeouts", ranks: []int{2},
	},
	{
		name:     "a process reopens the library with new environment variables",
		scenario: "reopen", ranks: []int{2},
	},
}

func TestCProgram(t *testing.T) {
	for _, s := range scenarios {
		for _, ranks := range s.ranks {
			t.Run(fmt.Sprintf("%s, on %d", s.name, ranks), func(t *testing.T) {
				out := runScenario(t, ranks, s.scenario)
				if got := strings.Count(out, s.scenario+" is done"); got != ranks-s.lostCount {
					t.Errorf("%d ranks completed, want %d:\n%s", got, ranks-s.lostCount, out)
				}
			})
		}
	}
}

// TestForkedChildClosesConnections forks a child of rank 1. If the child kept its connection to the
// store open, rank 0 would wait in symmem_close until the child exits.
func TestForkedChildClosesConnections(t *testing.T) {
	b := build(t)
	input, child, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer child.Close() // the child exits when its input ends
	store := "DRIVE_STORE=unix:@drive-" + rand.Text()
	ranks := make([]*exec.Cmd, 2)
	for rank := range ranks {
		c := systest.Command(t, deadline, b.program, "left-child")
		c.Env = append(os.Environ(), store, fmt.Sprintf("RANK=%d", rank), "WORLD_SIZE=2")
		c.Stdin, c.Stdout, c.Stderr = input, os.Stdout, os.Stderr
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}

		ranks[rank] = c
	}

	input.Close()
	for rank, c := range ranks {
		if err := c.Wait(); err != nil {
			t.Errorf("rank %d: %v", rank, err)
		}
	}
}

func TestCProgramOnSoftwareGPU(t *testing.T) {
	cuda, nccl, err := softgpu.Build()
	if err != nil {
		t.Fatal(err)
	}

	for _, s := range []struct{ name, scenario string }{
		{"SGLang's functions register with several communicators", "plug"},
		{"a communicator of another library is attached to a group", "attach"},
		{"collectives are captured in a foreign graph", "capture"},
		{"worlds share a GPU and a stream, and one closes", "gpu-worlds"},
		{"all-reduce, residual and RMSNorm are fused", "norm"},
		{"checked pads are read on a stream of their own", "pads"},
	} {
		for _, ranks := range []int{2, 4} {
			t.Run(fmt.Sprintf("%s, on %d", s.name, ranks), func(t *testing.T) {
				out := runScenario(t, ranks, s.scenario, "SYMMEM_CUDA="+cuda, "SYMMEM_NCCL="+nccl,
					"DRIVE_DIR="+t.TempDir())
				if got := strings.Count(out, s.scenario+" is done"); got != ranks {
					t.Errorf("%d ranks completed, want %d:\n%s", got, ranks, out)
				}
			})
		}
	}
}

// BenchmarkCalls prints the times of calls that a C program has measured; b.N has no effect.
func BenchmarkCalls(b *testing.B) {
	var environment []string
	if testing.Short() {
		environment = append(environment, "DRIVE_SHORT=1")
	}

	for _, ranks := range []int{1, 2} {
		b.Log("\n" + runScenario(b, ranks, "speed", environment...))
	}
}
