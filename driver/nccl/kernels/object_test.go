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
	"strconv"
	"strings"
	"testing"

	"symmem/driver"
	"symmem/internal/reduce"
)

// kernelNames lists all kernels that Choose can give, and those that are launched behind or between
// them.
func kernelNames() map[string]bool {
	names := map[string]bool{
		shortKernel: true, longKernel: true, AddKernel: true, NormKernel: true, AfterAll: true,
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
	if len(names) != 3*(4*4+3)+3*4+4+4+1 {
		t.Errorf("Choose gives %d kernels: %v", len(names), names)
	}
	hasKernels(t, Object, names)
	hasKernels(t, MessageObject, messageNames())
}

// messageNames lists all that Copies can give.
func messageNames() map[string]bool {
	names := map[string]bool{}
	for _, bytes := range []int64{0, 1, smallMessage, smallMessage + 1, 1 << 40} {
		for _, c := range Copies(bytes) {
			names[c.Kernel] = true
		}
	}
	return names
}

// hasKernels compares the kernels of objects with those that should be there.
func hasKernels(
	t *testing.T, objectFor func(major, minor int) ([]byte, error), names map[string]bool,
) {
	t.Helper()
	for capability, in := range map[[2]int]func(*testing.T, []byte) map[string]bool{
		{8, 0}: inBinary, {8, 6}: inBinary, {8, 9}: inBinary, {9, 0}: inBinary, {10, 0}: inBinary,
		{10, 3}: inBinary, {12, 0}: inBinary, {12, 1}: inBinary, {11, 0}: inText, {13, 0}: inText,
	} {
		object, err := objectFor(capability[0], capability[1])
		if err != nil {
			t.Fatal(err)
		}
		found := in(t, object)
		for name := range names {
			if !found[name] {
				t.Errorf("%s is not in the object for %v", name, capability)
			}
		}
		if len(found) != len(names) {
			t.Errorf("the object for %v has %d kernels, of which %d are used", capability, len(found),
				len(names))
		}
	}
}

// cudaMachine is the machine of ELF files for NVIDIA's GPUs.
const cudaMachine = 190

// binaryOf reads an object that is no PTX.
func binaryOf(t *testing.T, object []byte) *elf.File {
	t.Helper()
	// NVIDIA has versions of its own, which package elf does not take.
	object = bytes.Clone(object)
	binary.LittleEndian.PutUint32(object[20:], uint32(elf.EV_CURRENT))
	f, err := elf.NewFile(bytes.NewReader(object))
	if err != nil {
		t.Fatal(err)
	}
	if f.Machine != cudaMachine {
		t.Errorf("the machine is %v", f.Machine)
	}
	return f
}

// codeIn finds the instructions of each kernel of a binary.
func codeIn(t *testing.T, object []byte) map[string][]byte {
	t.Helper()
	found := map[string][]byte{}
	for _, s := range binaryOf(t, object).Sections {
		if name, is := strings.CutPrefix(s.Name, ".text."); is && s.Type == elf.SHT_PROGBITS {
			code, err := s.Data()
			if err != nil {
				t.Fatal(err)
			}
			found[name] = code
		}
	}
	return found
}

func inBinary(t *testing.T, object []byte) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for name := range codeIn(t, object) {
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

// inText also looks at the version of PTX: drivers from 535 on, of CUDA 12.2, know 8.2.
func inText(t *testing.T, object []byte) map[string]bool {
	t.Helper()
	version := ptxVersion.FindSubmatch(object)
	if version == nil || !ptxTarget.Match(object) {
		t.Fatal("the object is no PTX for sm_90")
	}
	major, _ := strconv.Atoi(string(version[1]))
	minor, _ := strconv.Atoi(string(version[2]))
	if major > 8 || major == 8 && minor > 2 {
		t.Errorf("PTX %d.%d is too new for drivers of CUDA 12.2", major, minor)
	}
	found := map[string]bool{}
	for _, entry := range ptxEntry.FindAllSubmatch(object, -1) {
		found[string(entry[1])] = true
	}
	return found
}

// acquireBulk and preExit are the opcodes of griddepcontrol.wait and .launch_dependents, the lowest
// bits of an instruction of 16 bytes: read from what NVRTC makes of kernels with and without them.
const (
	opcode      = 1<<12 - 1
	acquireBulk = 0x82e
	preExit     = 0x82d
)

// TestKernelsThatOverlapWait reads the objects of all architectures: a kernel that lets the next
// one begin early, or that may be launched to overlap, waits for those ahead of it.
func TestKernelsThatOverlapWait(t *testing.T) {
	for major := range binaries {
		object, err := Object(major, 0)
		if err != nil {
			t.Fatal(err)
		}
		for kernel, code := range codeIn(t, object) {
			waits, lets := 0, 0
			for at := 0; at+16 <= len(code); at += 16 {
				switch binary.LittleEndian.Uint16(code[at:]) & opcode {
				case acquireBulk:
					waits++
				case preExit:
					lets++
				}
			}
			if overlaps(kernel) && Wait(major) != (waits > 0) || lets > 0 && waits == 0 {
				t.Errorf("%s of %s waits for the kernels ahead at %d places, lets the next begin at %d",
					kernel, architectureOf(major), waits, lets)
			}
		}
	}
	text, err := Object(11, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, kernel := range ptxKernel.FindAllSubmatch(text, -1) {
		waits := bytes.Contains(kernel[0], []byte("griddepcontrol.wait;"))
		if overlaps(string(kernel[1])) && !waits {
			t.Errorf("%s of compute_90 does not wait for the kernels ahead", kernel[1])
		}
	}
}

// overlaps reports whether a kernel may be launched to overlap: all but the bulk ones.
func overlaps(kernel string) bool { return familyOf(kernel) != "" || kernel == longKernel }

func TestOldGPUsHaveNoObject(t *testing.T) {
	for _, major := range []int{5, 7} {
		if _, err := Object(major, 5); err == nil || !strings.Contains(err.Error(), "8.0 is the first") {
			t.Errorf("%d.5: got %v", major, err)
		}
	}
}

// TestSourcesAndObjectsBelongTogether compares both with what make.sh has written of them.
func TestSourcesAndObjectsBelongTogether(t *testing.T) {
	const remedy = "run driver/nccl/kernels/make.sh, and keep what it writes"
	manifest, err := objects.ReadFile("objects/MANIFEST")
	if err != nil {
		t.Fatal(err)
	}
	noted := map[string]string{}
	first, rest, _ := strings.Cut(string(manifest), "\n")
	if !strings.HasPrefix(first, "NVRTC ") {
		t.Errorf("MANIFEST begins with %q; %s", first, remedy)
	}
	for line := range strings.Lines(rest) {
		var sum, name string
		if _, err := fmt.Sscan(line, &sum, &name); err != nil {
			t.Fatalf("MANIFEST: %q: %v", line, err)
		}
		noted[name] = sum
	}
	present := map[string]string{}
	sums(t, Sources, "src", present)
	sums(t, objects, "objects", present)
	delete(present, "MANIFEST")
	for name, sum := range present {
		if noted[name] != sum {
			t.Errorf("%s is not the one that was compiled; %s", name, remedy)
		}
	}
	for name := range noted {
		if present[name] == "" {
			t.Errorf("%s was compiled, but is gone; %s", name, remedy)
		}
	}
}

// sums adds the sums of the files of a folder.
func sums(t *testing.T, from embed.FS, folder string, to map[string]string) {
	t.Helper()
	entries, err := fs.ReadDir(from, folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		data, err := from.ReadFile(path.Join(folder, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(data)
		to[e.Name()] = hex.EncodeToString(sum[:])
	}
}
