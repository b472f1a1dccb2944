package softgpu

import (
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// libraries is a set of libraries built with the same flags, and of programs linked to them.
type libraries struct {
	dir   string
	flags []string
}

// plain is the set of libraries built without additional flags. Tests share it, because compiling
// takes seconds.
var plain libraries

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	if err := plain.make(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}

	return m.Run()
}

// make builds the libraries, including the additional kernels in testdata, and the programs.
func (l *libraries) make() (err error) {
	l.dir, err = cachedFolder(l.flags, func(dir string) error {
		target := filepath.Join(kernelsIn(dir), "src")
		err := os.MkdirAll(target, 0o755)
		for _, name := range []string{"probe.cu", "probe.h"} {
			text, readErr := os.ReadFile(filepath.Join("testdata", name))
			err = errors.Join(err, readErr, os.WriteFile(filepath.Join(target, name), text, 0o644))
		}

		if err := errors.Join(err, build(dir, l.flags)); err != nil {
			return err
		}

		return compilePrograms(dir, l.flags)
	}, os.DirFS("testdata"), thisTest)
	return err
}

// thisTest holds the code that compiles the programs.
//
//go:embed softgpu_test.go
var thisTest embed.FS

func compilePrograms(dir string, flags []string) error {
	compiled := map[string]bool{}
	for _, s := range programRuns {
		name := s.program
		if compiled[name] || s.long && len(flags) > 0 {
			continue
		}

		compiled[name] = true
		compiler, language := "gcc", []string{"-std=gnu11"}
		if filepath.Ext(name) == ".cc" {
			compiler, language = "g++", includingKernels(dir)
		}

		args := slices.Concat(language, []string{
			"-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread",
			"-I" + filepath.Join(dir, "src", "abi"), filepath.Join("testdata", name),
			"-o", filepath.Join(dir, name+".run"),
			"-L" + dir, "-l:" + ncclName, "-l:" + cudaName, "-Wl,-rpath,$ORIGIN",
		}, flags)
		if _, err := runCompiler(dir, name, compiler, args); err != nil {
			return err
		}
	}

	return nil
}

func (l libraries) program(name string) string { return filepath.Join(l.dir, name+".run") }

// includingKernels returns flags for programs that include the kernels' headers, without warnings
// about these headers.
func includingKernels(dir string) []string {
	return []string{
		"-std=c++17", "-Wno-missing-field-initializers", "-Wno-unused-function",
		"-I" + filepath.Join(dir, "src", "gpu"),
		"-isystem", filepath.Join(kernelsIn(dir), "src"),
	}
}

// programRuns lists the runs of the test programs. A comment at the beginning of each program
// describes what the program tests.
var programRuns = []struct {
	name, program string
	args, env     []string
	long          bool // excluded from runs under a sanitizer
}{
	{name: "memory has handles, mappings and access", program: "memory.c"},
	{name: "streams, events and captures follow CUDA's rules", program: "stream.c"},
	{name: "delayed work stays in order", program: "stream.c", env: []string{"SOFTGPU_LAG=200"}},
	{name: "user objects live as long as their holders", program: "object.c"},
	{name: "collectives match NCCL's, including wrong results", program: "collective.c"},
	{
		name: "collectives of a later NCCL version", program: "collective.c",
		env: []string{"SOFTGPU_NCCL=22907"},
	},
	{name: "an abort ends a hanging call", program: "hang.c"},
	{name: "ranks may be processes", program: "process.c", args: []string{"plain"}},
	{
		name: "ranks of several machines get no windows", program: "process.c",
		args: []string{"nodes"},
	},
	{
		name: "a communicator may have no windows", program: "process.c",
		args: []string{"null"}, env: []string{"SOFTGPU_WINDOWS=null"},
	},
	{
		name:    "the survivor of a killed rank hangs until it aborts",
		program: "process.c", args: []string{"kill"},
	},
	{name: "the device supports what kernels use", program: "device.cc"},
	{
		name:    "links without native atomics",
		program: "device.cc", env: []string{"SOFTGPU_LINK=pcie"}, long: true,
	},
	{
		name:    "devices without links",
		program: "device.cc", env: []string{"SOFTGPU_LINK=none"}, long: true,
	},
	{
		name:    "threads may run in reverse order",
		program: "device.cc", env: []string{"SOFTGPU_ORDER=down"}, long: true,
	},
	{
		name:    "kernels do not depend on the order of threads",
		program: "kernels.cc", args: []string{"4", "240", "4"}, env: []string{"SOFTGPU_ORDER=down"},
		long: true,
	},
	{
		name:    "kernels of two ranks",
		program: "kernels.cc", args: []string{"2", "120", "4"},
	},
	{
		name:    "kernels of four ranks",
		program: "kernels.cc", args: []string{"4", "60", "2"},
	},
	{
		name:    "many kernels of two ranks",
		program: "kernels.cc", args: []string{"2", "600", "32"}, long: true,
	},
	{
		name:    "kernels of three ranks",
		program: "kernels.cc", args: []string{"3", "120", "6"}, long: true,
	},
	{
		name:    "many kernels of four ranks",
		program: "kernels.cc", args: []string{"4", "600", "6"}, long: true,
	},
	{
		name:    "kernels of eight ranks",
		program: "kernels.cc", args: []string{"8", "60", "3"}, env: []string{"SOFTGPU_DEVICES=8"},
		long: true,
	},
}

// shortExitSleep shortens the sleep at the end of programs under the thread sanitizer. The sleep
// gives threads that are still running time to exhibit races; by default, it takes a second.
const shortExitSleep = "TSAN_OPTIONS=atexit_sleep_ms=10"

func runPrograms(t *testing.T, b libraries) {
	for _, s := range programRuns {
		if s.long && len(b.flags) > 0 {
			continue
		}

		t.Run(s.name, func(t *testing.T) {
			before := sharedNames(t)
			scratch := t.TempDir()
			c := exec.Command(b.program(s.program), s.args...)
			c.Env = slices.Concat(os.Environ(), s.env, []string{"TMPDIR=" + scratch, shortExitSleep})
			if text, err := c.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, text)
			}

			if remaining, _ := os.ReadDir(scratch); len(remaining) > 0 {
				t.Errorf("the program left %s in TMPDIR", remaining[0].Name())
			}

			for name := range sharedNames(t) {
				if !before[name] {
					t.Errorf("the program left %s in /dev/shm", name)
				}
			}
		})
	}
}

// sharedNames lists the names in /dev/shm that a software GPU could have left there.
func sharedNames(t *testing.T) map[string]bool {
	t.Helper()
	entries, err := os.ReadDir("/dev/shm")
	if err != nil {
		t.Fatal(err)
	}

	names := map[string]bool{}
	for _, e := range entries {
		if strings.Contains(e.Name(), "softgpu") {
			names[e.Name()] = true
		}
	}

	return names
}

func TestPrograms(t *testing.T) { runPrograms(t, plain) }

// TestProgramsHaveNoRaces runs the programs under the thread sanitizer, which makes a program fail
// at its first race.
func TestProgramsHaveNoRaces(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles everything a second time")
	}

	sanitized := libraries{flags: []string{"-fsanitize=thread", "-Wno-tsan"}}
	if err := sanitized.make(); err != nil {
		t.Fatal(err)
	}

	runPrograms(t, sanitized)
}

// TestInjectedFailureIsReturned makes only the second allocation fail. The program must report
// the error of that allocation.
func TestInjectedFailureIsReturned(t *testing.T) {
	c := exec.Command(plain.program("collective.c"))
	c.Env = append(os.Environ(), "SOFTGPU_FAIL=cuMemCreate:2:2")
	text, err := c.CombinedOutput()
	if err == nil || !strings.Contains(string(text), "returned 2 ") {
		t.Errorf("got %v, want the injected error\n%s", err, text)
	}
}

var (
	symmetric = regexp.MustCompile(
		`\[0\] NCCL INFO AllReduce \[Symmetric\]: 400012 Bytes -> Kernel AllReduce_RSxLD_AGxST `)
	ring = regexp.MustCompile(
		`\[0\] NCCL INFO AllReduce: 400012 Bytes -> Algo RING proto SIMPLE channel`)
)

// TestOnlyRankZeroLogs checks that rank 0 logs both paths and that no other rank logs anything.
func TestOnlyRankZeroLogs(t *testing.T) {
	pattern := filepath.Join(t.TempDir(), "log-%p")
	c := exec.Command(plain.program("collective.c"))
	c.Env = append(os.Environ(), "NCCL_DEBUG=INFO", "NCCL_DEBUG_SUBSYS=INIT,TUNING",
		"NCCL_DEBUG_FILE="+pattern)
	if text, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}

	log, err := os.ReadFile(strings.ReplaceAll(pattern, "%p", fmt.Sprint(c.Process.Pid)))
	if err != nil {
		t.Fatal(err)
	}

	if !symmetric.Match(log) || !ring.Match(log) {
		t.Errorf("the log lacks one of the paths:\n%s", log)
	}

	if strings.Contains(string(log), "[1] NCCL INFO") {
		t.Error("rank 1 wrote to the log")
	}
}

func TestBuildErrorContainsCompilerOutput(t *testing.T) {
	err := build(t.TempDir(), []string{"-fno-such-thing"})
	if err == nil || !strings.Contains(err.Error(), "compiling kernels: ") ||
		!strings.Contains(err.Error(), "-fno-such-thing") {
		t.Errorf("got %v, want an error with the output of the compiler", err)
	}
}
