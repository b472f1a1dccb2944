package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"symmem"
)

// unevenTask is what a rank is told: to run some programs.
type unevenTask struct {
	Seed            uint64
	First, Programs int
	// Software has the ranks use the GPU backend, with a GPU of software.
	Software bool
}

// unevenWorld is how many programs one world of processes runs, and unevenLimit how long they may
// take together.
const (
	unevenWorld   = 10
	unevenLimit   = 5 * time.Minute
	unevenTimeout = time.Minute
)

// split is an exchange of parts of any sizes.
type split struct {
	// counts[a][b] is how many elements rank a sends to rank b.
	counts [][]int64
	// outs and ins are where the parts lie in the memory of each rank, in elements.
	outs, ins [][]int64
	wide      bool
	stream    int
	id        uint64
}

// unevenPair is the most that goes from one rank to another, in bytes.
const unevenPair = 64 << 20

// drawSplit draws an exchange. Parts are equal by chance on all ranks, on some, or on none.
func drawSplit(d *rand.Rand, ranks int, large bool) *split {
	x := &split{wide: d.IntN(2) == 0, stream: d.IntN(streams), id: d.Uint64()}
	most := []int64{1, 20, 1000, 1000, 60_000}[d.IntN(5)]
	even := d.IntN(3) // of how many thirds of the ranks parts are equal
	for range ranks {
		row := make([]int64, ranks)
		for b := range row {
			row[b] = d.Int64N(most + 1)
			if d.IntN(5) == 0 {
				row[b] = 0
			}
			if d.IntN(3) < even {
				row[b] = most / 2
			}
		}
		if d.IntN(3) < even {
			row = slices.Repeat([]int64{most / 2}, ranks)
		}
		x.counts = append(x.counts, row)
	}
	if large {
		n := unevenPair / x.bytes()
		x.counts[d.IntN(ranks)][d.IntN(ranks)] = n - d.Int64N(n/2)
	}
	for r := range ranks {
		received := make([]int64, ranks)
		for from := range received {
			received[from] = x.counts[from][r]
		}
		x.outs = append(x.outs, lay(d, x.counts[r]))
		x.ins = append(x.ins, lay(d, received))
	}
	return x
}

// lay draws where parts lie: in any order, with gaps.
func lay(d *rand.Rand, counts []int64) []int64 {
	offsets, at := make([]int64, len(counts)), int64(0)
	order, gaps := d.Perm(len(counts)), d.IntN(2) == 0
	if d.IntN(2) == 0 {
		slices.Sort(order)
	}
	for _, i := range order {
		if gaps {
			at += d.Int64N(20)
		}
		offsets[i] = at
		at += counts[i]
	}
	return offsets
}

func (x *split) bytes() int64 {
	if x.wide {
		return 8
	}
	return 1
}

func (x *split) dataType() symmem.DataType {
	if x.wide {
		return symmem.Int64
	}
	return symmem.Uint8
}

// room is how many bytes of memory a rank needs, the same on all.
func (x *split) room() (elements int64) {
	for a, row := range x.counts {
		for b := range row {
			elements = max(elements, x.outs[a][b]+row[b], x.ins[b][a]+row[b])
		}
	}
	return max(1, elements) * x.bytes()
}

// splits are those of one rank.
func (x *split) splits(rank int) symmem.Splits {
	received := make([]int64, len(x.counts))
	for from := range received {
		received[from] = x.counts[from][rank]
	}
	return symmem.Splits{
		SendCounts: x.counts[rank], SendOffsets: x.outs[rank], RecvCounts: received,
		RecvOffsets: x.ins[rank],
	}
}

// part is what one rank sends to another.
func (x *split) part(from, to int) []byte {
	return noiseOf(x.id, uint64(from)<<32|uint64(to), int(x.counts[from][to]*x.bytes()))
}

func (x *split) String() string {
	return fmt.Sprintf("parts of %d bytes each: %v, sent from %v, received at %v, stream %d",
		x.bytes(), x.counts, x.outs, x.ins, x.stream)
}

// ranks is how many ranks the world has in which the programs run.
func (t *unevenTask) ranks() int {
	return 2 + newDraws(t.Seed, -1-(t.First-1)/unevenWorld).IntN(7)
}

// program draws the exchanges of one program, which are queued together.
func (t *unevenTask) program(number int) (exchanges []*split, inPlace bool) {
	d := newDraws(t.Seed, number)
	ranks, n := t.ranks(), 1+d.IntN(4)
	large := d.IntN(20) == 0
	for i := range n {
		exchanges = append(exchanges, drawSplit(d, ranks, large && i == 0))
	}
	return exchanges, d.IntN(4) == 0
}

// TestUneven exchanges parts of any sizes, up to 64 MiB, among 2 to 8 ranks, several exchanges at a
// time on several streams.
func TestUneven(t *testing.T) {
	bar{programs: 40, each: unevenWorld, run: func(ctx context.Context, first, programs int) error {
		return uneven(ctx, unevenTask{Seed: *seedFlag, First: first, Programs: programs}, nil)
	}}.meet(t)
}

// TestUnevenOnAGPU does the same on the GPU backend: on a GPU of software, or, where the variable
// SYMMEM_TEST_BACKEND is nccl, on those of the machine.
func TestUnevenOnAGPU(t *testing.T) {
	if racing && os.Getenv("SYMMEM_TEST_BACKEND") != "nccl" {
		t.Skip(fmt.Errorf("the software GPU takes minutes under the race detector: %w",
			symmem.ErrUnsupported))
	}
	env := gpuVariables(t)
	bar{programs: 20, each: unevenWorld, run: func(ctx context.Context, first, programs int) error {
		return uneven(ctx, unevenTask{
			Seed: *seedFlag, First: first, Programs: programs, Software: true,
		}, env)
	}}.meet(t)
}

func uneven(ctx context.Context, task unevenTask, env []string) error {
	var said messagesReports
	j := job{
		role: "uneven", ranks: task.ranks(), task: task, limit: unevenLimit, variables: env,
		hear: said.hear,
	}
	_, err := j.run(ctx)
	for _, r := range said.inOrder() {
		if len(r.Bad) > 0 {
			p, inPlace := task.program(r.Program)
			return errors.Join(fmt.Errorf("program %d on rank %d: %q\nin place: %v\n%v", r.Program,
				r.Rank, r.Bad, inPlace, p), err)
		}
	}
	if err == nil {
		err = said.complete(j.ranks)
	}
	if err != nil {
		return fmt.Errorf("programs %d to %d: %w", task.First, task.First+task.Programs-1, err)
	}
	return nil
}

// unevenRank is the main function of a rank.
func unevenRank(text []byte) error {
	var task unevenTask
	if err := json.Unmarshal(text, &task); err != nil {
		return err
	}
	o := symmem.Options{Backend: "host", Check: symmem.CheckEvery, Timeout: unevenTimeout}
	if task.Software {
		o.Backend = "nccl"
	}
	m, err := openMessenger(context.Background(), o)
	if err != nil {
		return err
	}
	report := messagesReport{Rank: m.rt.Rank(), Program: task.First}
	for ; report.Program < task.First+task.Programs; report.Program++ {
		exchanges, inPlace := task.program(report.Program)
		if err := m.exchange(exchanges, inPlace); err != nil {
			report.Bad = append(report.Bad, err.Error())
			break
		}
	}
	if err := m.rt.Close(); err != nil && len(report.Bad) == 0 {
		report.Bad = append(report.Bad, fmt.Sprintf("closing: %v", err))
	}
	return json.NewEncoder(os.Stdout).Encode(report)
}

// exchange does all exchanges of a program, and then looks at what has come.
func (m *messenger) exchange(exchanges []*split, inPlace bool) error {
	var buffers []symmem.Buffer
	images := make([][]byte, len(exchanges))
	for i, x := range exchanges {
		var pair [2]symmem.Buffer
		for k := range pair {
			b, err := m.pool.AllocOn(m.streams[x.stream], x.room())
			if err != nil {
				return err
			}
			buffers, pair[k] = append(buffers, b), b
		}
		if inPlace {
			pair[1] = pair[0]
		}
		image, err := m.queue(x, pair[0], pair[1])
		if err != nil {
			return err
		}
		images[i] = image
	}
	var errs []error
	for i, s := range m.streams {
		if err := s.Synchronize(m.ctx); err != nil {
			errs = append(errs, fmt.Errorf("stream %d: %w", i, err))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	for i, x := range exchanges {
		errs = append(errs, x.look(m.rt.Rank(), images[i]))
	}
	for _, b := range buffers {
		errs = append(errs, b.Free())
	}
	return errors.Join(errs...)
}

// queue queues one exchange between the copies of what is sent and what is received.
func (m *messenger) queue(x *split, send, recv symmem.Buffer) (image []byte, err error) {
	me, n := m.rt.Rank(), x.room()
	out := make([]byte, n)
	for to, at := range x.outs[me] {
		copy(out[at*x.bytes():], x.part(me, to))
	}
	s := m.streams[x.stream]
	from, err := send.Memory().Slice(0, n)
	if err != nil {
		return nil, err
	}
	into, err := recv.Memory().Slice(0, n)
	if err != nil {
		return nil, err
	}
	if send != recv {
		if err := s.Fill(into, gapByte); err != nil {
			return nil, err
		}
	}
	if err := s.Copy(from, symmem.Host(out)); err != nil {
		return nil, err
	}
	err = m.rt.World().AllToAllV(m.ctx, from, into, x.splits(me), x.dataType(), s)
	if err != nil {
		return nil, err
	}
	image = make([]byte, n)
	return image, s.Copy(symmem.Host(image), into)
}

// look says what is wrong about what a rank has received.
func (x *split) look(rank int, image []byte) error {
	for from, at := range x.ins[rank] {
		want := x.part(from, rank)
		if got := image[at*x.bytes():][:len(want)]; !bytes.Equal(got, want) {
			return fmt.Errorf("wrong: the part of rank %d begins with %x instead of %x, of %v", from,
				got[:min(len(got), 8)], want[:min(len(want), 8)], x)
		}
	}
	return nil
}
