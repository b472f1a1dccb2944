package house

import (
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const binding = "cmd/libsymmem/internal/binding"

// place identifies code that must list every entry of an extension point. It is a declaration in a
// package, or one or more whole files in another language.
type place struct {
	path string // folder of a package ("." for the root), a file, or a folder of files (ending in /)
	name string // the declaration: a function, a Type.method, a variable, or a constant in a block
	// spelled converts an entry to the name that this place uses. If spelled is nil, the place uses
	// the Go name.
	spelled func(entry string) string
	// counted is set if the place contains one string for each entry, in the order of the entries,
	// rather than the names of the entries.
	counted bool
	// exempt holds the entries that the place need not list, each with the reason.
	exempt map[string]string
	// rare is set if only special entries must be listed here.
	rare bool
}

// String returns the place as the page of the extension point lists it.
func (p place) String() string {
	if p.name == "" {
		return "`" + p.path + "`"
	}

	return "`" + p.name + "` in `" + p.path + "`"
}

// point describes an extension point: its entries, and the places that must list them.
type point struct {
	page string // page in docs/extending, without .md
	// entries identifies a constant, whose block lists the entries, or a variable, whose string keys
	// or values are the entries.
	entries place
	places  []place
	// maxPlaces is the maximum number of places, not counting rare ones. 0 means no limit.
	maxPlaces int
}

const (
	message   = "messages are handled elsewhere"
	byNorm    = "a norm has separate functions"
	byRoute   = "it has its own kernels and functions"
	bySplits  = "uneven parts have separate functions"
	bySends   = "it runs as sends and receives"
	plainOnly = "it has only the plain path"
	byDefault = "the default case implements it"
	divided   = "a sum, divided at the end"
	scaled    = "a sum of products, which ScaledSum computes"
	simple    = "one instruction implements it"
	hostOnly  = "only the host backend has it"
	notNCCL   = "NCCL has no such type"
	noKernel  = "no kernel reduces it"
	noFactor  = "kernels have no factor"
)

func upper(entry string) string { return strings.ToUpper(entry) }

func lower(entry string) string { return strings.ToLower(entry) }

// snake returns the name of a reduction in Python, such as premul_sum for PremulSum.
func snake(entry string) string {
	return strings.ToLower(camel.ReplaceAllString(entry, "${1}_${2}"))
}

// function returns the name of the C function for an operation, such as symmem_all_to_all_v for
// AllToAllV.
func function(entry string) string {
	return "symmem_" + snake(entry)
}

var camel = regexp.MustCompile(`([a-z]|All)([A-Z])`)

func withNCCL(entry string) string { return "nccl" + entry }

// short exempts 16-bit integers for the given reason.
func short(reason string) map[string]string {
	return map[string]string{"Int16": reason, "Uint16": reason}
}

// average lists the reductions that package reduce does not have.
var average = map[string]string{"Avg": divided, "PremulSum": scaled}

// oneInstruction lists the reductions for which every type has an instruction.
var oneInstruction = map[string]string{
	"Sum": simple, "Avg": divided, "BAnd": simple, "BOr": simple, "BXor": simple,
	"PremulSum": scaled,
}

// onHost lists the reductions that GPU kernels do not have.
var onHost = map[string]string{
	"Avg": divided, "BAnd": hostOnly, "BOr": hostOnly, "BXor": hostOnly, "PremulSum": noFactor,
}

var points = []point{
	{
		page:    "data-type",
		entries: place{path: "internal/reduce", name: "Float32"},
		places: []place{
			{path: "internal/reduce", name: "dataTypeNames", spelled: lower},
			{path: "internal/reduce", name: "reducePortable"},
			{path: "internal/reduce/gen", name: "elements"},
			{path: "driver", name: "Float64"},
			{path: ".", name: "Float64"},
			{path: "driver/formula", name: "Reduce"},
			{path: "internal/nccl", name: "Int8", exempt: short(notNCCL)},
			{path: "driver/nccl", name: "dataTypes"},
			{path: "driver/nccl/kernels", name: "types", exempt: short(noKernel)},
			{path: binding, name: "types"},
			{path: "cmd/libsymmem/symmem.h", spelled: upper},
			{path: "python/src/symmem/_c/constants.py", spelled: upper},
		},
	},
	{
		page:      "operation",
		entries:   place{path: "driver", name: "AllReduce"},
		maxPlaces: 6,
		places: []place{
			{path: "driver", name: "operationTraits"},
			{path: "driver/host", name: "mover.move"},
			{path: "driver/nccl", name: "plan.collective", exempt: map[string]string{
				"Send": message, "Recv": message, "AllReduceRMSNorm": byNorm,
				"ReduceScatterRMSNorm": byNorm, "AllToAllV": bySplits, "AllGatherV": bySplits,
				"ReduceScatterV": bySplits, "Gather": bySends, "Scatter": bySends,
				"Dispatch": byRoute, "Combine": byRoute,
			}},
			{path: "driver/nccl/kernels", name: "Launch.setParts", exempt: map[string]string{
				"Send": message, "Recv": message, "AllReduceRMSNorm": byNorm,
				"ReduceScatterRMSNorm": byNorm, "AllToAllV": bySplits, "AllGatherV": plainOnly,
				"ReduceScatterV": plainOnly, "Gather": plainOnly, "Scatter": plainOnly,
				"Dispatch": byRoute, "Combine": byRoute,
			}},
			{path: "collective.go"},
			{path: "python/src/symmem/_api/", spelled: function, exempt: map[string]string{
				"AllReduceRMSNorm": byNorm, "ReduceScatterRMSNorm": byNorm,
			}},
		},
	},
	{
		page:      "operation",
		entries:   place{path: "driver", name: "Sum"},
		maxPlaces: 8,
		places: []place{
			{path: "driver", name: "reductions"},
			{path: "internal/reduce", name: "Combine", exempt: average},
			{path: "internal/reduce/gen", name: "operations", exempt: average},
			{path: "internal/reduce/gen", name: "avx2.combineLanes", rare: true, exempt: oneInstruction},
			{path: "internal/reduce/gen", name: "avx512.combineLanes", rare: true, exempt: oneInstruction},
			{path: "internal/reduce/reduce_reference_test.go", exempt: average},
			{path: "driver/nccl/kernels/src/call.h", exempt: onHost},
			{path: "driver/nccl/kernels/src/any.h", exempt: onHost},
			{path: "internal/softgpu/src/nccl/reduce.c", spelled: withNCCL, exempt: map[string]string{
				"Sum": byDefault, "BAnd": hostOnly, "BOr": hostOnly, "BXor": hostOnly,
				"PremulSum": "factor.c creates it",
			}},
			{path: "python/tests/programs/formula.py", spelled: snake},
		},
	},
	{
		page:    "gpu-architecture",
		entries: place{path: "driver/nccl/kernels", name: "binaries"},
		places: []place{
			{path: "driver/nccl/kernels/make.sh"},
			{path: "driver/nccl/kernels/objects/MANIFEST"},
			{path: "driver/nccl/kernels/doc.go"},
		},
	},
	{
		page:    "message",
		entries: place{path: ".", name: "kindLost"},
		places: []place{
			{path: ".", name: "reportOf"},
			{path: ".", name: "report.toError", exempt: map[string]string{
				"kindClosed": "only its text is known", "kindOther": "only its text is known",
			}},
			{path: ".", name: "inquiry.selectCause", exempt: map[string]string{
				"kindPeer": "a report about another rank, which reports itself",
			}},
		},
	},
	{
		page:    "message",
		entries: place{path: "driver", name: "LaneControl"},
		places: []place{
			{path: "internal/control", name: "laneNames", counted: true},
		},
	},
}

func TestPlacesNameAllEntries(t *testing.T) {
	files, all := loadFiles(t), loadPages(t)
	for _, p := range points {
		entries := p.list(t, files)
		for _, at := range p.places {
			text := at.text(t, files, all)
			if n := strings.Count(text, `"`) / 2; at.counted && n != len(entries) {
				t.Errorf("%v has %d strings for the entries %v: see docs/extending/%s.md",
					at, n, entries, p.page)
			}

			if at.counted {
				continue
			}

			for _, entry := range entries {
				t.Run(p.page+"/"+entry+"/"+at.path+" "+at.name, func(t *testing.T) {
					_, left := at.exempt[entry]
					switch knows := at.knows(text, entry); {
					case !knows && !left:
						t.Errorf("%v does not list %s: see docs/extending/%s.md", at, entry, p.page)
					case knows && left:
						t.Errorf("%v lists %s although it is exempt", at, entry)
					}
				})
			}

			for _, entry := range slices.Sorted(maps.Keys(at.exempt)) {
				if !slices.Contains(entries, entry) {
					t.Errorf("%v is exempt from %s, which does not exist", at, entry)
				}
			}
		}
	}
}

func TestExtensionsNeedFewPlaces(t *testing.T) {
	for _, p := range points {
		needed := 0
		for _, at := range p.places {
			if !at.rare {
				needed++
			}
		}

		if p.maxPlaces > 0 && needed > p.maxPlaces {
			t.Errorf("a new entry next to %v must be added in %d places, but at most %d are allowed; "+
				"derive lists of names from the table", p.entries, needed, p.maxPlaces)
		}
	}
}

func TestExtensionPagesListThePlaces(t *testing.T) {
	all := loadPages(t)
	for _, p := range points {
		name := "docs/extending/" + p.page + ".md"
		rest, ok := all[name]
		if !ok {
			t.Errorf("%s does not exist", name)
			continue
		}

		for _, at := range append([]place{p.entries}, p.places...) {
			_, after, ok := strings.Cut(rest, at.String())
			if !ok {
				t.Errorf("%s does not list %v, or lists it in another order than the test", name, at)
				continue
			}

			rest = after
		}
	}
}

// TestEveryBackendRunsTheContract checks what docs/extending/backend.md states about backends.
func TestEveryBackendRunsTheContract(t *testing.T) {
	files, all := loadFiles(t), loadPages(t)
	listed := place{path: ".", name: "backends"}
	backends := regexp.MustCompile(`(\w+)\.Backend\{\}`).FindAllStringSubmatch(
		listed.text(t, files, all), -1)
	if len(backends) < 2 {
		t.Fatalf("found only %d backends, want 2 or more", len(backends))
	}

	for _, b := range backends {
		folder := "driver/" + b[1]
		tested := slices.ContainsFunc(files, func(f *file) bool {
			return f.folder() == folder && f.isTest() && strings.Contains(f.source, "drivertest.Run(")
		})
		if !tested {
			t.Errorf("no test of %s calls drivertest.Run: see docs/extending/backend.md", folder)
		}

		for _, page := range []string{"docs/reference/backends.md", "README.md"} {
			if !strings.Contains(all[page], "| `"+b[1]+"`") {
				t.Errorf("%s has no row for %s", page, b[1])
			}
		}
	}
}

// TestBackendPageListsCodeThatNamesBackends checks that docs/extending/backend.md lists exactly the
// files that name a backend.
func TestBackendPageListsCodeThatNamesBackends(t *testing.T) {
	page := loadPages(t)["docs/extending/backend.md"]
	for _, f := range loadFiles(t) {
		if f.isTest() || f.path == "backend.go" || strings.HasPrefix(f.path, "driver/") ||
			strings.HasPrefix(f.path, "bench/") {
			continue
		}

		knows := false
		ast.Inspect(f.syntax, func(n ast.Node) bool {
			knows = knows || namesBackend(n)
			return true
		})
		if listed := strings.Contains(page, "`"+f.path+"`"); knows != listed {
			t.Errorf("%s: names a backend: %v; listed in docs/extending/backend.md: %v", f.path,
				knows, listed)
		}
	}

	for _, match := range regexp.MustCompile("`([a-z_/]+\\.go)`").FindAllStringSubmatch(page, -1) {
		if _, err := os.Stat(filepath.Join("..", "..", match[1])); err != nil {
			t.Errorf("docs/extending/backend.md: %v", err)
		}
	}
}

// namesBackend reports whether a node compares a value with the name of a backend, or passes such a
// name to a function or in a struct.
func namesBackend(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		return isBackend(n.X) || isBackend(n.Y)
	case *ast.CallExpr:
		s, ok := n.Fun.(*ast.SelectorExpr)
		return ok && s.Sel.Name == "LocalRanks" && slices.ContainsFunc(n.Args, isBackend)
	case *ast.KeyValueExpr:
		key, ok := n.Key.(*ast.Ident)
		return ok && key.Name == "Backend" && isBackend(n.Value)
	}

	return false
}

func isBackend(e ast.Expr) bool {
	literal, ok := e.(*ast.BasicLit)
	return ok && (literal.Value == `"host"` || literal.Value == `"nccl"`)
}

func (p *point) list(t *testing.T, files []*file) []string {
	t.Helper()
	f, node := p.entries.find(t, files)
	block, ok := node.(*ast.GenDecl)
	var entries []string
	if ok && block.Tok == token.CONST {
		for _, s := range block.Specs {
			for _, name := range s.(*ast.ValueSpec).Names {
				// Names at the end of a block that count its entries, such as kinds, are not
				// entries.
				count := strings.HasSuffix(name.Name, "s") && name.Name != "kindMessages" &&
					name.Name != "LaneCalls"
				if !count && name.Name != "_" {
					entries = append(entries, name.Name)
				}
			}
		}
	} else {
		for _, m := range regexp.MustCompile(`"(\w+)"`).FindAllStringSubmatch(f.cut(node), -1) {
			entries = append(entries, m[1])
		}
	}

	if len(entries) < 2 {
		t.Fatalf("%v: found only the entries %v, want 2 or more", p.entries, entries)
	}

	return entries
}

func (p place) knows(text, entry string) bool {
	word := entry
	if p.spelled != nil {
		word = p.spelled(entry)
	}

	// A name may follow the prefix of its enumeration, as in SYMMEM_SUM.
	return regexp.MustCompile(`(\b|[A-Z]_)` + word + `\b`).MatchString(text)
}

func (p place) text(t *testing.T, files []*file, all pages) string {
	t.Helper()
	if p.name != "" {
		f, node := p.find(t, files)
		return f.cut(node)
	}

	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if name == p.path || strings.HasSuffix(p.path, "/") && strings.HasPrefix(name, p.path) {
			text.WriteString(all[name])
		}
	}

	if text.Len() == 0 {
		t.Fatalf("%s does not exist", p.path)
	}

	return text.String()
}

// find returns the declaration of a place, and the file that contains it.
func (p place) find(t *testing.T, files []*file) (*file, ast.Node) {
	t.Helper()
	for _, f := range files {
		if path.Join(".", f.folder()) != p.path && f.folder() != p.path || f.isTest() {
			continue
		}

		for _, d := range f.syntax.Decls {
			if node := declared(d, p.name); node != nil {
				return f, node
			}
		}
	}

	t.Fatalf("%s does not declare %s: update this table and the page", p.path, p.name)
	return nil, nil
}

// declared returns the part of a declaration that declares a name, or nil. The part is a function,
// a variable, or the block that contains a constant.
func declared(d ast.Decl, name string) ast.Node {
	switch d := d.(type) {
	case *ast.FuncDecl:
		full := d.Name.Name
		if d.Recv != nil {
			full = fmt.Sprintf("%s.%s", receiverOf(d), full)
		}

		if full == name {
			return d
		}
	case *ast.GenDecl:
		for _, s := range d.Specs {
			v, ok := s.(*ast.ValueSpec)
			named := ok && slices.ContainsFunc(v.Names, func(i *ast.Ident) bool { return i.Name == name })
			if named && d.Tok == token.CONST {
				return d
			} else if named {
				return v
			}
		}
	}

	return nil
}

func receiverOf(d *ast.FuncDecl) string {
	return receiverName(d.Recv.List[0].Type)
}

func (f *file) cut(n ast.Node) string {
	return f.source[f.set.Position(n.Pos()).Offset:f.set.Position(n.End()).Offset]
}
