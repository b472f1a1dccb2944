package house

import (
	"go/ast"
	"slices"
	"strconv"
	"strings"
)

type link struct {
	file *file
	spec *ast.ImportSpec
	path string
}

// moduleFolder returns the folder of the imported package. ok is false if the package does not
// belong to the module.
func (l link) moduleFolder() (folder string, ok bool) {
	if l.path == module {
		return "", true
	}

	return strings.CutPrefix(l.path, module+"/")
}

// isStandard reports whether the package belongs to the standard library. The import paths of all
// other packages outside the module begin with a domain.
func (l link) isStandard() bool {
	first, _, _ := strings.Cut(l.path, "/")
	_, own := l.moduleFolder()
	return !own && !strings.Contains(first, ".")
}

// forbid returns a check that reports forbidden imports.
func forbid(forbidden func(link) bool) func([]*file) []finding {
	return eachFile(func(f *file) []finding {
		var all []finding
		for _, spec := range f.syntax.Imports {
			name, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				continue
			}

			if forbidden(link{f, spec, name}) {
				all = append(all, f.find(spec.Pos(), "imports %s", name))
			}
		}

		return all
	})
}

// isWithin reports whether a folder is one of the roots or inside one of them.
func isWithin(folder string, roots ...string) bool {
	return slices.ContainsFunc(roots, func(root string) bool {
		return folder == root || strings.HasPrefix(folder, root+"/")
	})
}

var cores = []string{
	"event", "internal/alloc", "internal/ledger", "internal/agreement", "internal/message",
}

// rootUsers lists internal packages that use the root package.
var rootUsers = []string{"internal/chaos", "internal/program", "internal/softgpu/roottest"}

// planePackages lists the packages that connect ranks for a backend and use the types of package
// driver.
var planePackages = []string{"internal/control"}

var rootImports = append([]string{
	"driver", "internal/rendezvous", "internal/handoff", "internal/invariants", "internal/live",
	"internal/ranked", "internal/spin", "internal/tuning", "trace",
}, cores...)

// ncclImports lists the packages that the GPU backend may import.
var ncclImports = []string{
	"driver", "driver/nccl/internal/direct", "driver/nccl/internal/gpu",
	"driver/nccl/internal/memory", "driver/nccl/internal/p2p", "driver/nccl/internal/stream",
	"driver/nccl/kernels",
	"internal/control", "internal/control/shm", "internal/control/tcp",
	"internal/cuda", "internal/nccl", "internal/ras", "internal/dl", "internal/handoff",
	"internal/mps", "internal/ranked", "internal/scatter", "internal/spin", "internal/sys",
}

// partsOfNCCL maps each package of the GPU backend to the packages that it may import.
var partsOfNCCL = map[string][]string{
	"driver/nccl/internal/gpu": {
		"driver", "driver/nccl/kernels", "internal/cuda", "internal/dl", "internal/ranked",
	},
	"driver/nccl/internal/memory": {
		"driver", "driver/nccl/internal/gpu", "internal/control/shm", "internal/cuda",
		"internal/dl", "internal/handoff", "internal/ranked", "internal/scatter",
	},
	"driver/nccl/internal/stream": {
		"driver", "driver/nccl/internal/gpu", "internal/cuda", "internal/ranked",
	},
	"driver/nccl/internal/direct": {
		"driver", "driver/nccl/internal/gpu", "driver/nccl/internal/memory",
		"driver/nccl/internal/stream", "driver/nccl/kernels", "internal/control", "internal/cuda",
		"internal/dl", "internal/handoff", "internal/ranked",
	},
	"driver/nccl/internal/p2p": {
		"driver", "driver/nccl/internal/gpu", "driver/nccl/internal/memory",
		"driver/nccl/internal/stream", "driver/nccl/kernels", "internal/control", "internal/cuda",
		"internal/handoff", "internal/message", "internal/ranked", "internal/spin", "internal/sys",
	},
}

const (
	purego     = "github.com/ebitengine/purego"
	prometheus = "github.com/prometheus/client_golang"
)

// testModules lists the modules that only tests may use.
var testModules = []string{
	"pgregory.net/rapid", "github.com/cockroachdb/datadriven", "github.com/google/go-cmp",
	"go.uber.org/goleak", "github.com/rogpeppe/go-internal", "golang.org/x/tools/go/packages",
	"github.com/evanw/esbuild",
}

func source(name, imported string) map[string]string {
	return map[string]string{name: "package p\n\nimport _ \"" + imported + "\"\n"}
}

var importRules = []rule{
	{
		name: "cores import only the standard library",
		reason: "cores are pure state machines, so that the same code runs under every backend, in " +
			"the simulator and in replays; exceptions are agreement, which compares ledgers and names " +
			"ranks, and imports of package event, which is itself a core",
		check: forbid(func(l link) bool {
			if l.file.isTest() || !isWithin(l.file.folder(), cores...) || l.isStandard() {
				return false
			}

			if l.path == "symmem/event" {
				return false
			}

			return !(l.file.folder() == "internal/agreement" &&
				(l.path == "symmem/internal/ledger" || l.path == "symmem/internal/ranklist"))
		}),
		bad: []map[string]string{
			source("internal/alloc/a.go", "symmem/driver"),
			source("internal/ledger/a.go", "symmem/internal/agreement"),
			source("internal/message/a.go", "golang.org/x/exp/slices"),
		},
		good: []map[string]string{
			source("internal/alloc/a.go", "math/bits"),
			source("internal/agreement/a.go", "symmem/internal/ledger"),
			source("internal/alloc/a_test.go", "pgregory.net/rapid"),
		},
	},
	{
		name:   "cores do no I/O",
		reason: "a core that reads a clock, a file or the network cannot be replayed",
		check: forbid(func(l link) bool {
			impure := []string{"os", "net", "time", "syscall", "math/rand", "math/rand/v2", "sync"}
			return !l.file.isTest() && isWithin(l.file.folder(), cores...) && slices.Contains(impure, l.path)
		}),
		bad:  []map[string]string{source("internal/alloc/a.go", "time")},
		good: []map[string]string{source("internal/alloc/a_test.go", "time")},
	},
	{
		name:   "bindings import only internal/dl and the standard library (NCCL's also CUDA's types)",
		reason: "bindings declare a library's functions, independent of their use",
		check: forbid(func(l link) bool {
			return !l.file.isTest() && isWithin(l.file.folder(), "internal/cuda", "internal/nccl") &&
				!l.isStandard() && l.path != "symmem/internal/dl" &&
				!(l.file.folder() == "internal/nccl" && l.path == "symmem/internal/cuda")
		}),
		bad: []map[string]string{
			source("internal/cuda/a.go", "symmem/internal/sys"),
			source("internal/cuda/a.go", "symmem/internal/nccl"),
		},
		good: []map[string]string{source("internal/nccl/a.go", "symmem/internal/dl")},
	},
	{
		name:   "driver/nccl imports only listed packages",
		reason: "the backend is a thin layer over bindings and planes; policy belongs in other packages",
		check: forbid(func(l link) bool {
			folder, own := l.moduleFolder()
			return own && !l.file.isTest() && l.file.folder() == "driver/nccl" &&
				!slices.Contains(ncclImports, folder)
		}),
		bad: []map[string]string{
			source("driver/nccl/a.go", "symmem/internal/rendezvous"),
			source("driver/nccl/a.go", "symmem/internal/ledger"),
			source("driver/nccl/a.go", "symmem/driver/host"),
		},
		good: []map[string]string{
			source("driver/nccl/a.go", "symmem/internal/control/shm"),
			source("driver/nccl/a.go", "symmem/internal/control/tcp"),
		},
	},
	{
		name:   "parts of driver/nccl import only lower parts",
		reason: "layers become entangled if one may call the layer above it",
		check: forbid(func(l link) bool {
			folder, own := l.moduleFolder()
			parts := partsOfNCCL[l.file.folder()]
			return own && !l.file.isTest() && parts != nil && !slices.Contains(parts, folder)
		}),
		bad: []map[string]string{
			source("driver/nccl/internal/gpu/a.go", "symmem/driver/nccl/internal/memory"),
			source("driver/nccl/internal/memory/a.go", "symmem/driver/nccl/internal/stream"),
			source("driver/nccl/internal/stream/a.go", "symmem/internal/control"),
		},
		good: []map[string]string{
			source("driver/nccl/internal/memory/a.go", "symmem/driver/nccl/internal/gpu"),
		},
	},
	{
		name:   "planes import package driver and their transport: TCP and rendezvous, or shared memory",
		reason: "a plane connects ranks for any backend, so it must not depend on one",
		check: forbid(func(l link) bool {
			folder, own := l.moduleFolder()
			allowed := map[string][]string{
				"internal/control": {"driver", "internal/message"},
				"internal/control/tcp": {
					"driver", "internal/control", "internal/rendezvous", "internal/sys",
				},
				"internal/control/shm": {
					"driver", "internal/control", "internal/handoff", "internal/message",
					"internal/ranked", "internal/spin", "internal/sys",
				},
			}[l.file.folder()]
			return own && !l.file.isTest() && allowed != nil && !slices.Contains(allowed, folder)
		}),
		bad: []map[string]string{
			source("internal/control/a.go", "symmem/internal/rendezvous"),
			source("internal/control/tcp/a.go", "symmem/internal/handoff"),
			source("internal/control/tcp/a.go", "symmem/internal/control/shm"),
			source("internal/control/shm/a.go", "symmem/internal/rendezvous"),
			source("internal/control/shm/a.go", "symmem/internal/reduce"),
		},
		good: []map[string]string{
			source("internal/control/tcp/a.go", "symmem/internal/control"),
			source("internal/control/shm/a.go", "symmem/internal/handoff"),
		},
	},
	{
		name:   "only tests import internal/softgpu",
		reason: "programs for users must not run on a software GPU",
		check: forbid(func(l link) bool {
			return l.path == "symmem/internal/softgpu" && !l.file.isTest() &&
				l.file.folder() != "driver/nccl/internal/gpu/gputest"
		}),
		bad:  []map[string]string{source("cmd/symmem/a.go", "symmem/internal/softgpu")},
		good: []map[string]string{source("cmd/symmem/a_test.go", "symmem/internal/softgpu")},
	},
	{
		name:   "nothing imports a command",
		reason: "commands are the outermost layer",
		check: forbid(func(l link) bool {
			folder, ok := l.moduleFolder()
			return ok && isWithin(folder, "cmd") && !isWithin(l.file.folder(), "cmd")
		}),
		bad:  []map[string]string{source("internal/sim/a.go", "symmem/cmd/symmem")},
		good: []map[string]string{source("cmd/symmem/a.go", module)},
	},
	{
		name:   "the root imports cores and package driver, and backends only in backend.go",
		reason: "the root works with any backend; backend.go lists the backends of a program",
		check: forbid(func(l link) bool {
			folder, own := l.moduleFolder()
			if l.file.folder() != "" || l.file.isTest() || l.isStandard() {
				return false
			}

			backend := own && isWithin(folder, "driver") && folder != "driver"
			return !own || backend && l.file.path != "backend.go" ||
				!backend && !slices.Contains(rootImports, folder)
		}),
		bad: []map[string]string{
			source("pool.go", "symmem/driver/host"), source("pool.go", "symmem/internal/sys"),
			source("pool.go", "github.com/spf13/cobra"),
		},
		good: []map[string]string{
			source("backend.go", "symmem/driver/host"), source("pool.go", "symmem/driver"),
			source("backend.go", "symmem/driver/nccl"),
		},
	},
	{
		name: "a backend never imports the root or another backend",
		reason: "dependencies have one direction: the root calls backends, which are independent; " +
			"a control plane connects their ranks and depends on no backend",
		check: forbid(func(l link) bool {
			folder, ok := l.moduleFolder()
			if !ok || !isWithin(l.file.folder(), "driver") {
				return false
			}

			contract := l.file.isTest() && folder == "driver/drivertest"
			part := isWithin(folder, "driver/nccl/internal", "driver/nccl/kernels") &&
				isWithin(l.file.folder(), "driver/nccl")
			formula := folder == "driver/formula" &&
				(l.file.isTest() || l.file.folder() == "driver/drivertest")
			return !contract && !part && !formula && folder != "driver" && folder != "event" &&
				!isWithin(folder, "internal")
		}),
		bad: []map[string]string{
			source("driver/host/a.go", module), source("driver/host/a.go", "symmem/driver/nccl"),
			source("driver/a.go", "symmem/driver/host"),
			source("driver/nccl/a.go", "symmem/driver/host"),
			source("driver/nccl/a_test.go", "symmem/driver/host"),
			source("driver/host/a.go", "symmem/driver/formula"),
		},
		good: []map[string]string{
			source("driver/host/a.go", "symmem/internal/sys"),
			source("driver/drivertest/a.go", "symmem/driver/formula"),
			source("driver/host/a_test.go", "symmem/driver/drivertest"),
			source("driver/nccl/a.go", "symmem/internal/control/shm"),
			source("driver/nccl/a_test.go", "symmem/internal/softgpu"),
		},
	},
	{
		name: "internal packages never import the root or package driver",
		reason: "the root is built from internal packages; the exceptions are packages that " +
			"test the root, control planes, which use the types of package driver, and the software " +
			"GPU, which compiles the sources of kernels",
		check: forbid(func(l link) bool {
			folder, ok := l.moduleFolder()
			isPlane := folder == "driver" && isWithin(l.file.folder(), planePackages...)
			compiles := folder == "driver/nccl/kernels" && l.file.folder() == "internal/softgpu"
			return ok && isWithin(l.file.folder(), "internal") && !isWithin(l.file.folder(), rootUsers...) &&
				(folder == "" || isWithin(folder, "driver") && !isPlane && !compiles)
		}),
		bad: []map[string]string{
			source("internal/sim/a.go", module), source("internal/sys/a.go", "symmem/driver"),
			source("internal/control/tcp/a.go", "symmem/driver/host"),
			source("internal/control/shm/a.go", "symmem/driver/host"),
			source("internal/softgpu/a.go", "symmem/driver/nccl"),
		},
		good: []map[string]string{
			source("internal/chaos/a.go", module),
			source("internal/control/tcp/a.go", "symmem/driver"),
			source("internal/softgpu/a.go", "symmem/driver/nccl/kernels"),
		},
	},
	{
		name:   "internal/reduce and internal/spin import no package of the module",
		reason: "they are kernels, independent of their callers",
		check: forbid(func(l link) bool {
			_, own := l.moduleFolder()
			return own && !l.file.isTest() && isWithin(l.file.folder(), "internal/reduce", "internal/spin")
		}),
		bad:  []map[string]string{source("internal/spin/a.go", "symmem/internal/sys")},
		good: []map[string]string{source("internal/spin/a.go", "sync/atomic")},
	},
	{
		name:   "only cmd/libsymmem uses cgo",
		reason: "everything else builds without a C compiler",
		check: forbid(func(l link) bool {
			return l.path == "C" && l.file.folder() != "cmd/libsymmem"
		}),
		bad:  []map[string]string{source("driver/host/a.go", "C")},
		good: []map[string]string{source("cmd/libsymmem/a.go", "C")},
	},
	{
		name: "code outside commands has no foreign dependencies",
		reason: "a library without dependencies is easy to adopt; tests use a few well-known modules, " +
			"and the live view uses Prometheus's client",
		check: forbid(func(l link) bool {
			_, own := l.moduleFolder()
			if own || l.isStandard() || l.path == "C" || strings.HasPrefix(l.path, "golang.org/x/sys") ||
				isWithin(l.path, purego) ||
				l.file.folder() == "internal/live" && isWithin(l.path, prometheus) {
				return false
			}

			return !isWithin(l.file.folder(), "cmd") &&
				!(l.file.isTest() && isWithin(l.path, testModules...))
		}),
		bad: []map[string]string{
			source("driver/a.go", "github.com/google/go-cmp/cmp"),
			source("driver/a_test.go", "github.com/stretchr/testify/assert"),
			source("live.go", "github.com/prometheus/client_golang/prometheus"),
		},
		good: []map[string]string{
			source("driver/a_test.go", "github.com/google/go-cmp/cmp"),
			source("cmd/symmem/a.go", "github.com/spf13/cobra"),
			source("internal/live/a.go", "github.com/prometheus/client_golang/prometheus"),
		},
	},
}
