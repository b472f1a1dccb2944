package kernels

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"embed"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"symmem/driver"
	"symmem/internal/reduce"
)

// kernelNames lists all kernels that Choose can return, AfterAll, and the retired kernels.
func kernelNames() map[string]bool {
	names := map[string]bool{AfterAll: true}
	for _, kernel := range Retired {
		names[kernel] = true
	}

	for ranks := 2; ranks <= MaxRanks; ranks++ {
		for operation := range driver.Barrier + 1 {
			for _, dataType := range reduce.DataTypes() {
				for _, bytes := range []int64{0, kib, 512 * kib, 2 * mib, 3 * mib, 5 * mib, 64 * mib} {
					l, err := choose(Launch{
						Call: &driver.Call{
							Operation: operation, DataType: dataType,
							Count: bytes / int64(dataType.Size()), Recv: 1,
						},
						Ranks: ranks, Symmetric: true, Multiprocessors: 132,
					})
					if err == nil {
						names[l.Kernel] = true
					}
				}
			}
		}
	}

	return names
}

func TestEveryKernelIsInEveryObject(t *testing.T) {
	names := kernelNames()
	if len(names) != 3*(4*4+3)+3*4+4+1+len(Retired) {
		t.Errorf("kernelNames lists %d kernels, which is not the expected number: %v", len(names), names)
	}

	checkKernels(t, Object, names)
	checkKernels(t, NormObject, normNames())
	checkKernels(t, MessageObject, messageNames())
	checkKernels(t, RouteObject, routeNames(t))
	checkKernels(t, RowsObject, rowsNames(t))
}

// rowsNames lists all kernels that ChooseRows can return.
func rowsNames(t *testing.T) map[string]bool {
	names := map[string]bool{}
	for ranks := 2; ranks <= MaxRanks; ranks++ {
		for _, dataType := range []driver.DataType{
			driver.Float32, driver.Float16, driver.BFloat16, driver.Int32,
		} {
			for _, count := range []int64{0, 4 * mib} {
				counts := make([]int64, ranks)
				counts[0] = count
				for _, call := range []*driver.Call{
					{Operation: driver.AllGatherV, Splits: &driver.Splits{RecvCounts: counts}},
					{Operation: driver.ReduceScatterV, Splits: &driver.Splits{SendCounts: counts}},
				} {
					call.DataType, call.Splits = dataType, call.Splits.WithOffsets()
					l := Launch{Call: call, Ranks: ranks, Symmetric: true, Multiprocessors: 132}
					rows, err := ChooseRows(l, []*driver.Call{call})
					if err != nil {
						t.Fatal(err)
					}

					names[rows.launches[0].kernel] = true
				}
			}
		}
	}

	return names
}

// normNames lists all kernels that norms use, apart from the kernels of all-reduces.
func normNames() map[string]bool {
	names := map[string]bool{}
	for _, dataType := range []driver.DataType{driver.BFloat16, driver.Float16} {
		for _, quant := range []driver.Quant{driver.QuantNone, driver.QuantPerRow} {
			for _, ranks := range []int{2, 3, 4} {
				for _, l := range []Launch{
					normOf(ranks, 1, 1024), normOf(ranks, 200, 1024), symmetricNormOf(ranks, 1024, 4096),
					scattered(normOf(ranks, 1, 1024)), scattered(symmetricNormOf(ranks, 1024, 4096)),
				} {
					l.DataType, l.Norm.Quant = dataType, quant
					if l, err := choose(l); err == nil && (!l.Bulk || l.Fused) {
						names[l.Kernel] = true
						names[newLocalStep(&l, &Transport{}).Kernel] = true
					}
				}
			}
		}
	}

	return names
}

// messageNames lists all kernels that Copies can return.
func messageNames() map[string]bool {
	names := map[string]bool{}
	for _, bytes := range []int64{0, 1, smallMessage, smallMessage + 1, 1 << 40} {
		for _, c := range Copies(bytes) {
			names[c.Kernel] = true
		}
	}

	return names
}

// checkKernels checks that each object contains exactly the given kernels.
func checkKernels(
	t *testing.T, objectFor func(major, minor int) ([]byte, error), names map[string]bool,
) {
	t.Helper()
	for capability, list := range map[[2]int]func(*testing.T, []byte) map[string]bool{
		{8, 0}: kernelsInCubin, {8, 6}: kernelsInCubin, {8, 9}: kernelsInCubin,
		{9, 0}: kernelsInCubin, {10, 0}: kernelsInCubin, {10, 3}: kernelsInCubin,
		{12, 0}: kernelsInCubin, {12, 1}: kernelsInCubin, {11, 0}: kernelsInPTX, {13, 0}: kernelsInPTX,
	} {
		object, err := objectFor(capability[0], capability[1])
		if err != nil {
			t.Fatal(err)
		}

		found := list(t, object)
		for name := range names {
			if !found[name] {
				t.Errorf("%s is not in the object for %v", name, capability)
			}
		}

		if len(found) != len(names) {
			t.Errorf("the object for %v has %d kernels, want %d", capability, len(found), len(names))
		}
	}
}

// cudaMachine is EM_CUDA, the machine of ELF files for NVIDIA GPUs.
const cudaMachine = 190

func parseCubin(t *testing.T, object []byte) *elf.File {
	t.Helper()
	// NVIDIA uses ELF versions that package elf does not accept.
	object = bytes.Clone(object)
	binary.LittleEndian.PutUint32(object[20:], uint32(elf.EV_CURRENT))
	f, err := elf.NewFile(bytes.NewReader(object))
	if err != nil {
		t.Fatal(err)
	}

	if f.Machine != cudaMachine {
		t.Errorf("the cubin's ELF machine is %v, want %v", f.Machine, cudaMachine)
	}

	return f
}

// kernelCode returns the instructions of each kernel of a cubin.
func kernelCode(t *testing.T, object []byte) map[string][]byte {
	t.Helper()
	found := map[string][]byte{}
	for _, s := range parseCubin(t, object).Sections {
		if name, ok := strings.CutPrefix(s.Name, ".text."); ok && s.Type == elf.SHT_PROGBITS {
			code, err := s.Data()
			if err != nil {
				t.Fatal(err)
			}

			found[name] = code
		}
	}

	return found
}

func kernelsInCubin(t *testing.T, object []byte) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for name := range kernelCode(t, object) {
		found[name] = true
	}

	return found
}

var (
	ptxVersion = regexp.MustCompile(`(?m)^\.version ([0-9]+)\.([0-9]+)$`)
	ptxTarget  = regexp.MustCompile(`(?m)^\.target sm_90$`)
	ptxKernel  = regexp.MustCompile(`(?s)\.entry (\w+)\(.*?\n}`)
	ptxEntry   = regexp.MustCompile(`(?m)^\.visible \.entry (\w+)\(`)
)

// kernelsInPTX lists the kernels in a PTX object. It also checks that the PTX version is at most
// 8.2, which is supported since driver 535 (CUDA 12.2).
func kernelsInPTX(t *testing.T, object []byte) map[string]bool {
	t.Helper()
	version := ptxVersion.FindSubmatch(object)
	if version == nil || !ptxTarget.Match(object) {
		t.Fatal("the object is not PTX for sm_90")
	}

	major, _ := strconv.Atoi(string(version[1]))
	minor, _ := strconv.Atoi(string(version[2]))
	if major > 8 || major == 8 && minor > 2 {
		t.Errorf("the object is PTX %d.%d, want at most 8.2 for drivers of CUDA 12.2", major, minor)
	}

	found := map[string]bool{}
	for _, entry := range ptxEntry.FindAllSubmatch(object, -1) {
		found[string(entry[1])] = true
	}

	return found
}

// acquireBulk and preExit are the opcodes of the instructions griddepcontrol.wait and
// griddepcontrol.launch_dependents. The mask opcode selects the lowest bits of an instruction,
// which contain the opcode. The values were found by compiling kernels with and without these
// instructions.
const (
	opcode      = 1<<12 - 1
	acquireBulk = 0x82e
	preExit     = 0x82d
)

// TestKernelsThatOverlapWait checks all objects. A kernel must wait for its predecessors if it
// may start its successor early, or if it may be launched with overlap.
func TestKernelsThatOverlapWait(t *testing.T) {
	for _, object := range []func(major, minor int) ([]byte, error){
		Object, NormObject, RouteObject,
	} {
		for major := range binaries {
			code, err := object(major, 0)
			if err != nil {
				t.Fatal(err)
			}

			checkWaits(t, major, code)
		}

		text, err := object(11, 0)
		if err != nil {
			t.Fatal(err)
		}

		for _, kernel := range ptxKernel.FindAllSubmatch(text, -1) {
			waits := bytes.Contains(kernel[0], []byte("griddepcontrol.wait;"))
			if overlaps(string(kernel[1])) && !waits {
				t.Errorf("%s of compute_90 has no griddepcontrol.wait", kernel[1])
			}
		}
	}
}

func checkWaits(t *testing.T, major int, object []byte) {
	t.Helper()
	for kernel, code := range kernelCode(t, object) {
		waits, launches := 0, 0
		for offset := 0; offset+16 <= len(code); offset += 16 {
			switch binary.LittleEndian.Uint16(code[offset:]) & opcode {
			case acquireBulk:
				waits++
			case preExit:
				launches++
			}
		}

		if overlaps(kernel) && CanOverlap(major) != (waits > 0) || launches > 0 && waits == 0 {
			t.Errorf("%s of %s has %d waits and %d launch_dependents, want waits if and only if it needs "+
				"them", kernel, architecture(major), waits, launches)
		}
	}
}

// overlaps reports whether a kernel may be launched with overlap, like line kernels and norm
// kernels.
func overlaps(kernel string) bool {
	norm := strings.HasPrefix(kernel, "norm") && !slices.Contains(Retired, kernel)
	return norm || familyOf(kernel) != ""
}

func TestOldGPUsHaveNoObject(t *testing.T) {
	for _, major := range []int{5, 7} {
		if _, err := Object(major, 5); err == nil || !strings.Contains(err.Error(), "8.0 or later") {
			t.Errorf("Object(%d, 5) = %v, want an error that asks for 8.0 or later", major, err)
		}
	}
}

// TestObjectsMatchSources compares the checksums of objects and sources with the manifest that
// make.sh wrote.
func TestObjectsMatchSources(t *testing.T) {
	const remedy = "run driver/nccl/kernels/make.sh and commit its output"
	manifest, err := objects.ReadFile("objects/MANIFEST")
	if err != nil {
		t.Fatal(err)
	}

	listed := map[string]string{}
	first, rest, _ := strings.Cut(string(manifest), "\n")
	if !strings.HasPrefix(first, "NVRTC ") {
		t.Errorf("MANIFEST begins with %q; %s", first, remedy)
	}

	for line := range strings.Lines(rest) {
		var sum, name string
		if _, err := fmt.Sscan(line, &sum, &name); err != nil {
			t.Fatalf("MANIFEST: %q: %v", line, err)
		}

		listed[name] = sum
	}

	present := map[string]string{}
	addChecksums(t, Sources, "src", present)
	addChecksums(t, objects, "objects", present)
	delete(present, "MANIFEST")
	for name, sum := range present {
		if listed[name] != sum {
			t.Errorf("%s has changed since the last run of make.sh; %s", name, remedy)
		}
	}

	for name := range listed {
		if present[name] == "" {
			t.Errorf("%s is missing; %s", name, remedy)
		}
	}
}

// addChecksums adds the checksums of the files in a folder to sums, by file name.
func addChecksums(t *testing.T, files embed.FS, folder string, sums map[string]string) {
	t.Helper()
	entries, err := fs.ReadDir(files, folder)
	if err != nil {
		t.Fatal(err)
	}

	for _, e := range entries {
		data, err := files.ReadFile(path.Join(folder, e.Name()))
		if err != nil {
			t.Fatal(err)
		}

		sum := sha256.Sum256(data)
		sums[e.Name()] = hex.EncodeToString(sum[:])
	}
}
