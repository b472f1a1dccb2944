package kernels

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
	"unsafe"

	"symmem/driver"
	"symmem/internal/cuda"
)

// layout is a C++ program that prints everything that must be the same in C++ and Go. For a
// field, it prints a line with the name, the offset and the size. For a constant, it prints the
// name, 0 and the value.
const layout = `#include <bulknorm.h>
#include <message.h>
#include <permute.h>
#include <cstddef>
#include <cstdio>
#define FIELD(type, name) \
	std::printf("%s.%s %zu %zu\n", #type, #name, offsetof(type, name), sizeof(((type*)nullptr)->name));
#define WHOLE(type) std::printf("%s 0 %zu\n", #type, sizeof(type));
#define VALUE(name) std::printf("%s 0 %llu\n", #name, (u64)name);
int main() {
	WHOLE(Call) WHOLE(Bulk) WHOLE(Report) WHOLE(Exchange)
	FIELD(Bulk, rank) FIELD(Bulk, ranks) FIELD(Bulk, sendTo) FIELD(Bulk, recvFrom) FIELD(Bulk, op)
	FIELD(Bulk, divisor) FIELD(Bulk, digest) FIELD(Bulk, send) FIELD(Bulk, recv) FIELD(Bulk, bytes)
	FIELD(Bulk, sendStride) FIELD(Bulk, recvStride) FIELD(Bulk, exchange) FIELD(Bulk, timeout)
	FIELD(Bulk, report) FIELD(Bulk, sendAt) FIELD(Bulk, recvAt)
	WHOLE(Norm)
	FIELD(Norm, residual) FIELD(Norm, weight) FIELD(Norm, quantized) FIELD(Norm, scales)
	FIELD(Norm, scaleRow) FIELD(Norm, scaleGroup) FIELD(Norm, rows) FIELD(Norm, hidden)
	FIELD(Norm, epsilon) FIELD(Norm, share) FIELD(Norm, bias) FIELD(Norm, quant)
	WHOLE(BulkNorm) FIELD(BulkNorm, hidden) FIELD(BulkNorm, sendAt)
	WHOLE(Gather) WHOLE(Scatter) WHOLE(Tensor)
	FIELD(Gather, digest) FIELD(Gather, exchange) FIELD(Gather, tensor) FIELD(Gather, chunks)
	FIELD(Tensor, first) FIELD(Tensor, parts) FIELD(Tensor, recvAt) FIELD(Parts, bytes)
	FIELD(Scatter, digest) FIELD(Scatter, exchange) FIELD(Scatter, send) FIELD(Scatter, chunks)
	FIELD(Scatter, parts) FIELD(Scatter, sendAt) FIELD(Scatter, divisor)
	WHOLE(Route)
	FIELD(Route, rank) FIELD(Route, ranks) FIELD(Route, tokens) FIELD(Route, topK)
	FIELD(Route, digest) FIELD(Route, timeout) FIELD(Route, report) FIELD(Route, experts)
	FIELD(Route, maxTokens) FIELD(Route, rowBytes) FIELD(Route, scales) FIELD(Route, ids)
	FIELD(Route, weights) FIELD(Route, rowScales) FIELD(Route, own) FIELD(Route, scalesAt)
	FIELD(Route, weightsAt) FIELD(Route, idsAt) FIELD(Route, countsAt)
	FIELD(Route, split) FIELD(Route, more) FIELD(Route, high) FIELD(Route, low)
	FIELD(Route, firstExpert) FIELD(Route, ownExperts) FIELD(Route, chunks) FIELD(Route, inverse)
	WHOLE(Permute)
	FIELD(Permute, ranks) FIELD(Permute, maxTokens) FIELD(Permute, topK) FIELD(Permute, rowBytes)
	FIELD(Permute, scales) FIELD(Permute, align) FIELD(Permute, computedBytes)
	FIELD(Permute, firstExpert) FIELD(Permute, ownExperts) FIELD(Permute, experts)
	FIELD(Permute, capacity) FIELD(Permute, dispatched) FIELD(Permute, permuted)
	FIELD(Permute, computed) FIELD(Permute, returned) FIELD(Permute, scalesAt)
	FIELD(Permute, weightsAt) FIELD(Permute, idsAt) FIELD(Permute, countsAt)
	FIELD(Permute, toScales) FIELD(Permute, toWeights) FIELD(Permute, toExperts)
	FIELD(Permute, toPlaces) FIELD(Permute, toFirsts) FIELD(Permute, toCounts)
	FIELD(Permute, toReceived)
	WHOLE(Message)
	FIELD(Message, from) FIELD(Message, to) FIELD(Message, bytes) FIELD(Message, taken)
	FIELD(Message, state) FIELD(Message, go)
	FIELD(Report, digest) FIELD(Report, theirs) FIELD(Report, epoch) FIELD(Report, ranks)
	FIELD(Report, fault) FIELD(Report, end)
	std::printf("Fault 0 %zu\n", offsetof(Exchange, control.states[0].fault));
	VALUE(ExchangeBytes) VALUE(HalfBytes) VALUE(MaxRanks) VALUE(MaxBlocks)
	VALUE(Sum) VALUE(Min) VALUE(Max) VALUE(Prod) VALUE(Tree) VALUE(Rounded)
	VALUE(TypeUnit) VALUE(TypeF64) VALUE(TypeBF16) VALUE(TypeU8) VALUE(TypeI64)
	VALUE(Aborted) VALUE(TimedOut) VALUE(Diverged) VALUE(MessageWaits) VALUE(MessageDone)
}
`

// extent is a field's location in a structure. For a constant, offset is 0 and size is the value.
type extent struct{ offset, size int }

// sourceLayout compiles layout with the headers of the kernels and runs it.
func sourceLayout(t *testing.T) map[string]extent {
	t.Helper()
	if _, err := exec.LookPath("g++"); err != nil {
		t.Fatalf("compiling the headers needs g++: %v", err)
	}

	dir := t.TempDir()
	source, program := filepath.Join(dir, "layout.cc"), filepath.Join(dir, "layout")
	if err := os.WriteFile(source, []byte(layout), 0o644); err != nil {
		t.Fatal(err)
	}

	device := filepath.Join("..", "..", "..", "internal", "softgpu", "src", "gpu")
	c := exec.Command("g++", "-std=c++17", "-O1", "-w", "-I"+device, "-Isrc", source, "-o", program)
	if text, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}

	text, err := exec.Command(program).Output()
	if err != nil {
		t.Fatal(err)
	}

	found := map[string]extent{}
	for line := range strings.Lines(string(text)) {
		var name string
		var p extent
		if _, err := fmt.Sscan(line, &name, &p.offset, &p.size); err != nil {
			t.Fatalf("%q: %v", line, err)
		}

		found[name] = p
	}

	return found
}

func TestLayoutMatchesSources(t *testing.T) {
	var r Report
	var m Message
	want := map[string]extent{
		"Report":        {0, int(unsafe.Sizeof(r))},
		"Exchange":      {0, HeaderBytes},
		"Fault":         {0, FaultOffset},
		"ExchangeBytes": {0, ExchangeBytes},
		"HalfBytes":     {0, halfBytes},
		"MaxRanks":      {0, MaxRanks},
		"MaxBlocks":     {0, maxBlocks},
		"Sum":           {0, opNumber(driver.Sum)},
		"Min":           {0, opNumber(driver.Min)},
		"Max":           {0, opNumber(driver.Max)},
		"Prod":          {0, opNumber(driver.Prod)},
		"Tree":          {0, orderTree},
		"Rounded":       {0, orderRounded},
		"TypeUnit":      {0, typeUnit},
		"TypeF64":       {0, typeNumber(driver.Float64)},
		"TypeBF16":      {0, typeNumber(driver.BFloat16)},
		"TypeU8":        {0, typeNumber(driver.Uint8)},
		"TypeI64":       {0, typeNumber(driver.Int64)},
		"Aborted":       {0, int(Aborted)},
		"TimedOut":      {0, int(TimedOut)},
		"Diverged":      {0, int(Diverged)},
		"MessageWaits":  {0, MessageWaits},
		"MessageDone":   {0, MessageDone},
		"Report.digest": {int(unsafe.Offsetof(r.Digest)), int(unsafe.Sizeof(r.Digest))},
		"Report.theirs": {int(unsafe.Offsetof(r.PeerDigest)), int(unsafe.Sizeof(r.PeerDigest))},
		"Report.epoch":  {int(unsafe.Offsetof(r.Epoch)), int(unsafe.Sizeof(r.Epoch))},
		"Report.ranks":  {int(unsafe.Offsetof(r.Ranks)), int(unsafe.Sizeof(r.Ranks))},
		"Report.fault":  {int(unsafe.Offsetof(r.fault)), int(unsafe.Sizeof(r.fault))},
		"Report.end":    {int(unsafe.Offsetof(r.end)), int(unsafe.Sizeof(r.end))},
		"Message.from":  {int(unsafe.Offsetof(m.From)), 8},
		"Message.to":    {int(unsafe.Offsetof(m.To)), 8},
		"Message.bytes": {int(unsafe.Offsetof(m.Bytes)), 8},
		"Message.taken": {int(unsafe.Offsetof(m.Taken)), 8},
		"Message.state": {int(unsafe.Offsetof(m.State)), 4},
		"Message.go":    {int(unsafe.Offsetof(m.Go)), 4},
	}
	maps.Copy(want, rowsLayout())
	found := sourceLayout(t)
	for name, p := range want {
		if found[name] != p {
			t.Errorf("%s: offset and size in Go = %v, want %v as in the C++ sources", name, p,
				found[name])
		}
	}
}

// rowsLayout returns the layout of the arguments of rows kernels.
func rowsLayout() map[string]extent {
	var g gatherArguments
	var s scatterArguments
	var tensor tensorArguments
	return map[string]extent{
		"Gather":           {0, int(unsafe.Sizeof(g))},
		"Scatter":          {0, int(unsafe.Sizeof(s))},
		"Tensor":           {0, int(unsafe.Sizeof(tensor))},
		"Gather.digest":    {int(unsafe.Offsetof(g.digest)), 8},
		"Gather.exchange":  {int(unsafe.Offsetof(g.exchange)), 8 * MaxRanks},
		"Gather.tensor":    {int(unsafe.Offsetof(g.tensor)), int(unsafe.Sizeof(g.tensor))},
		"Gather.chunks":    {int(unsafe.Offsetof(g.chunksOrDivisor)), 4},
		"Tensor.first":     {int(unsafe.Offsetof(tensor.first)), 8},
		"Tensor.parts":     {int(unsafe.Offsetof(tensor.parts)), int(unsafe.Sizeof(tensor.parts))},
		"Tensor.recvAt":    {int(unsafe.Offsetof(tensor.recvAt)), 8 * MaxRanks},
		"Parts.bytes":      {int(unsafe.Offsetof(tensor.parts.bytes)), 8 * MaxRanks},
		"Scatter.digest":   {int(unsafe.Offsetof(s.digest)), 8},
		"Scatter.exchange": {int(unsafe.Offsetof(s.exchange)), 8 * MaxRanks},
		"Scatter.send":     {int(unsafe.Offsetof(s.send)), 8},
		"Scatter.chunks":   {int(unsafe.Offsetof(s.chunks)), 8},
		"Scatter.parts":    {int(unsafe.Offsetof(s.parts)), int(unsafe.Sizeof(s.parts))},
		"Scatter.sendAt":   {int(unsafe.Offsetof(s.sendAt)), 8 * MaxRanks},
		"Scatter.divisor":  {int(unsafe.Offsetof(s.chunksOrDivisor)), 4},
	}
}

// opNumber returns the number that the kernels use for a reduction.
func opNumber(op driver.ReduceOp) int {
	number, _ := op.Kernel().Number()
	return int(number)
}

// typeNumber returns the number that generic kernels use for a data type.
func typeNumber(t driver.DataType) int { return int(types[t].number) }

func packed(p cuda.Params) []byte {
	return reflect.ValueOf(p).FieldByName("packed").Bytes()
}

// fakeWindow is a window in which rank r has each buffer at address w + r.
type fakeWindow uintptr

func (fakeWindow) Deregister() error { return nil }

func (w fakeWindow) Locate(uintptr) (addresses []uintptr) {
	for r := range uintptr(MaxRanks) {
		addresses = append(addresses, uintptr(w)+r)
	}

	return addresses
}

// TestParamsMatchSources packs a different number into each field, and checks that each number is
// at the offset of the field in the C++ structure.
func TestParamsMatchSources(t *testing.T) {
	l := Launch{
		Call: &driver.Call{
			Digest: 107, Send: 108, Recv: 109, SendWindow: fakeWindow(300), RecvWindow: fakeWindow(400),
		},
		Rank: 101, Ranks: 102,
		Bulk: true, PieceCount: 1, partBytes: 110, pieceBytes: 110, sendStride: 111, recvStride: 112,
		sendRanks: 103,
		recvRanks: 104, reduction: 105, divisor: 106,
	}
	transport := Transport{
		Timeout: 113 * time.Nanosecond, Report: 114, Exchange: fakeWindow(200).Locate(0),
	}
	want := map[string]uint64{
		"rank": 101, "ranks": 102, "sendTo": 103, "recvFrom": 104, "op": 105, "divisor": 106,
		"digest": 107, "send": 108, "recv": 109, "bytes": 110, "sendStride": 111, "recvStride": 112,
		"timeout": 113, "report": 114, "exchange": 200, "sendAt": 300, "recvAt": 400,
	}
	found, bulk := sourceLayout(t), packed(l.Steps(&transport)[0].Params)
	for name, value := range want {
		p, known := found["Bulk."+name]
		if !known {
			t.Errorf("%s is not in the sources", name)
		}

		step := min(p.size, 8) // a field with the addresses of all ranks has several elements
		for offset := p.offset; offset < p.offset+p.size; offset, value = offset+step, value+1 {
			if got := read(bulk[offset : offset+step]); got != value {
				t.Errorf("%s: got %d at offset %d, want %d", name, got, offset, value)
			}
		}
	}

	if len(bulk) != found["Bulk"].size {
		t.Errorf("the arguments of a bulk kernel have %d bytes, want %d", len(bulk), found["Bulk"].size)
	}

	const digest = 1 << 60
	step := l.Steps(&transport)[0]
	original := packed(step.Params)
	step.SetDigest(digest)
	changed := packed(step.Params)
	l.Digest = digest
	if string(changed) != string(packed(l.Steps(&transport)[0].Params)) ||
		string(original) != string(bulk) {
		t.Error("SetDigest must change only the digest, and only in a copy of the arguments")
	}

	l.Digest, l.Bulk = 107, false
	call := packed(l.Steps(&transport)[0].Params)
	if len(call) != found["Call"].size || string(call) != string(bulk[:len(call)]) {
		t.Errorf("other kernels take %d bytes of arguments, want exactly the first %d bytes of a bulk "+
			"kernel's arguments", len(call), found["Call"].size)
	}
}

func read(b []byte) uint64 {
	if len(b) == 4 {
		return uint64(binary.LittleEndian.Uint32(b))
	}

	return binary.LittleEndian.Uint64(b)
}

// TestNormParamsMatchSources does the same as TestParamsMatchSources for struct Norm.
func TestNormParamsMatchSources(t *testing.T) {
	l := Launch{Call: &driver.Call{Norm: &driver.Norm{
		Rows: 501, Hidden: 512, Epsilon: 0.5, WeightBias: 0.25, Residual: 504, Weight: 505,
		Quant: driver.QuantPerGroup, OnlyQuantized: true, Quantized: 506, Scales: 507,
		ScaleStrides: [2]int64{508, 509},
	}}}
	want := map[string]uint64{
		"rows": 501, "hidden": 512, "epsilon": uint64(math.Float32bits(0.5)), "residual": 504,
		"weight": 505, "quantized": 506, "scales": 507, "scaleRow": 508, "scaleGroup": 509,
		"share": uint64(math.Float32bits(1.0 / 512)), "bias": uint64(math.Float32bits(0.25)), "quant": 11,
	}
	checkLayout(t, "Norm", packed(normParams(&l, &Transport{})), want)
}

// checkLayout compares the packed fields of a structure with their expected values.
func checkLayout(t *testing.T, structure string, bytes []byte, want map[string]uint64) {
	t.Helper()
	found := sourceLayout(t)
	if len(bytes) != found[structure].size {
		t.Errorf("the arguments have %d bytes, want sizeof(%s) = %d", len(bytes), structure,
			found[structure].size)
	}

	for name, value := range want {
		p, known := found[structure+"."+name]
		if !known || read(bytes[p.offset:p.offset+p.size]) != value {
			t.Errorf("%s.%s is not at offset %d", structure, name, p.offset)
		}
	}
}
