package chaos

import (
	"bytes"
	"context"
	"encoding/binary"
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

// messagesTask is what a rank is told: to run some programs.
type messagesTask struct {
	Seed            uint64
	First, Programs int
	// GPU has the ranks use the GPU backend.
	GPU bool
}

// messagesWorld is how many programs one world of processes runs, and messagesLimit how long they
// may take together.
const (
	messagesWorld = 10
	messagesLimit = 4 * time.Minute
)

// messagesReport is what a rank has found.
type messagesReport struct {
	Rank int
	// Program is the number of the one with which the rank has ended, and Bad what was not right in
	// it; all was if there is nothing.
	Program int
	Bad     []string
}

// messagesReports are what the ranks of a job have written.
type messagesReports struct {
	reports []messagesReport
	other   []string // lines that are no reports
}

func (m *messagesReports) hear(line string) {
	var r messagesReport
	if err := json.Unmarshal([]byte(line), &r); err != nil {
		m.other = append(m.other, line)
		return
	}
	m.reports = append(m.reports, r)
}

// inOrder are the reports, those about the first programs first.
func (m *messagesReports) inOrder() []messagesReport {
	slices.SortStableFunc(m.reports, func(a, b messagesReport) int { return a.Program - b.Program })
	return m.reports
}

// complete is an error unless every rank has reported, and nothing else was written.
func (m *messagesReports) complete(ranks int) error {
	if len(m.reports) == ranks && len(m.other) == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d ranks have reported; %q", len(m.reports), ranks, m.other)
}

// TestMessages runs programs that are right: ranks send each other messages on any streams, also on
// what they have just received, among collectives. Each pair of ranks calls in the same order; the
// order of calls with different peers differs. Every message and every sum must be right, without
// an error.
func TestMessages(t *testing.T) {
	bar{programs: 40, each: messagesWorld, run: func(ctx context.Context, first, programs int) error {
		return messages(ctx, messagesTask{Seed: *seedFlag, First: first, Programs: programs}, nil)
	}}.meet(t)
}

// TestMessagesOnAGPU does the same on the GPU backend, as TestUnevenOnAGPU does, among 2 to 4
// ranks.
func TestMessagesOnAGPU(t *testing.T) {
	if racing && os.Getenv("SYMMEM_TEST_BACKEND") != "nccl" {
		t.Skip(fmt.Errorf("the software GPU takes minutes under the race detector: %w",
			symmem.ErrUnsupported))
	}
	env := gpuVariables(t)
	bar{programs: 20, each: messagesWorld, run: func(ctx context.Context, first, programs int) error {
		return messages(ctx, messagesTask{
			Seed: *seedFlag, First: first, Programs: programs, GPU: true,
		}, env)
	}}.meet(t)
}

func messages(ctx context.Context, task messagesTask, env []string) error {
	ranks, unordered := task.world()
	var said messagesReports
	j := job{
		role: "messages", ranks: ranks, task: task, limit: messagesLimit, variables: env,
		hear: said.hear,
	}
	_, err := j.run(ctx)
	for _, r := range said.inOrder() {
		if len(r.Bad) > 0 {
			p := drawMessages(task.Seed, r.Program, ranks, unordered)
			return errors.Join(fmt.Errorf("program %d on rank %d: %q\n%v", r.Program, r.Rank, r.Bad, p),
				err)
		}
	}
	if err == nil {
		err = said.complete(j.ranks)
	}
	if err != nil {
		return fmt.Errorf("programs %d to %d: %w", task.First,
			task.First+task.Programs-1, err)
	}
	return nil
}

// world is how many ranks the world has in which the programs run, and whether messages may cross
// collectives there.
func (t *messagesTask) world() (ranks int, unordered bool) {
	d := newDraws(t.Seed, -1-(t.First-1)/messagesWorld)
	ranks, unordered = 2+d.IntN(7), d.IntN(3) == 0
	if t.GPU {
		ranks = 2 + ranks%3
	}
	return ranks, unordered
}

// exchange is a message, or a sum over a group.
type exchange struct {
	group int
	// sum says that it is a sum of one int64.
	sum bool
	// from and to are world ranks; both have a stream for it.
	from, to             int
	fromStream, toStream int
	bytes                int
	// wide says that the call is about int32, not bytes.
	wide bool
	// source is the message, received before, that is passed on; -1 is one of its own.
	source int
	// tag is that of the calls. With any the receiver takes the message from whoever sends one with
	// the tag, as it does with all messages of anyTag.
	tag int
	any bool
	// id is what contents are made of.
	id uint64
	// out and in are where it lies in the memory of from and to; a sum has a place on all ranks.
	out, in int
}

// messageProgram is what ranks do.
type messageProgram struct {
	groups    [][]int
	exchanges []exchange
	// orders are the exchanges in the order in which each rank calls them.
	orders [][]int
	// sends and recvs are how much memory a rank needs, in bytes: alike on all.
	sends, recvs int
	foreign      bool
}

const (
	// tags is how many tags other messages have, from 0 on.
	tags   = 3
	anyTag = 7
)

// gap is what lies between the memory of two messages, and must stay as it was.
const (
	gap     = 64
	gapByte = 0xa5
)

// drawMessages draws a program of so many ranks, in which messages may be sent before a collective
// and received behind it, or not.
func drawMessages(seed uint64, number, ranks int, unordered bool) *messageProgram {
	d := newDraws(seed, number)
	p := &messageProgram{groups: splitInTwo(ranks), foreign: d.IntN(2) == 0}
	large := d.IntN(20) == 0
	anyBytes := 4 * d.IntN(5000) // whoever comes, the receiver knows how much
	for i := range 8 + d.IntN(30) {
		e := exchange{
			id: d.Uint64(), fromStream: d.IntN(streams), toStream: d.IntN(streams), source: -1,
			group: d.IntN(len(p.groups)),
		}
		members := p.groups[e.group]
		if len(members) < 2 || d.IntN(5) == 0 {
			e.sum = true
		} else {
			order := d.Perm(len(members))
			e.from, e.to = members[order[0]], members[order[1]]
			e.bytes, e.tag = drawBytes(d, large && i == 3), d.IntN(tags)
			if e.any = d.IntN(8) == 0; e.any {
				e.bytes, e.tag = anyBytes, anyTag
			} else {
				e.passOn(d, p.exchanges)
			}
			e.wide = e.bytes%4 == 0 && !e.any && d.IntN(2) == 0
		}
		p.exchanges = append(p.exchanges, e)
	}
	p.place(ranks)
	for r := range ranks {
		p.orders = append(p.orders, p.order(newDraws(d.Uint64(), r), r, unordered))
	}
	return p
}

// splitInTwo are the groups of a world: itself, its even ranks and its odd ones.
func splitInTwo(ranks int) [][]int {
	groups := make([][]int, 3)
	for r := range ranks {
		groups[0] = append(groups[0], r)
		groups[1+r%2] = append(groups[1+r%2], r)
	}
	return groups
}

// drawBytes draws the length of a message: up to 1 MiB, most of them short, few longer.
func drawBytes(d *rand.Rand, large bool) int {
	if large {
		return 1<<20 + d.IntN(7<<20)
	}
	return d.IntN(1 + []int{0, 64, 4 << 10, 64 << 10, 64 << 10, 256 << 10, 1 << 20}[d.IntN(7)])
}

// passOn makes a message in a third of all cases one that its sender has received.
func (e *exchange) passOn(d *rand.Rand, before []exchange) {
	if d.IntN(3) != 0 {
		return
	}
	for i := len(before) - 1; i >= 0; i-- {
		if s := &before[i]; !s.sum && !s.any && s.to == e.from {
			e.source, e.bytes = i, min(e.bytes, s.bytes)
			return
		}
	}
}

// place gives every message a place in the memory of its ranks. It is aligned for int32.
func (p *messageProgram) place(ranks int) {
	sends, recvs := make([]int, ranks), make([]int, ranks)
	for i := range p.exchanges {
		e := &p.exchanges[i]
		if e.sum {
			e.out, e.in = slices.Max(sends), slices.Max(recvs)
			for r := range ranks {
				sends[r], recvs[r] = e.out+8+gap, e.in+8+gap
			}
			continue
		}
		room := (e.bytes+7)/8*8 + gap
		e.in = recvs[e.to]
		recvs[e.to] += room
		if e.source < 0 {
			e.out = sends[e.from]
			sends[e.from] += room
		}
	}
	p.sends, p.recvs = slices.Max(sends)+8, slices.Max(recvs)+8
}

// order draws the order in which a rank calls: that of the program, but for some neighbours on
// different streams that are not in order.
func (p *messageProgram) order(d *rand.Rand, rank int, unordered bool) []int {
	var order []int
	for i := range p.exchanges {
		if e := &p.exchanges[i]; e.concerns(p, rank) {
			order = append(order, i)
		}
	}
	for i := 1; i < len(order); i++ {
		a, b := &p.exchanges[order[i-1]], &p.exchanges[order[i]]
		if d.IntN(3) == 0 && a.stream(rank) != b.stream(rank) && b.source != order[i-1] &&
			!a.ordered(b, unordered) {
			order[i-1], order[i] = order[i], order[i-1]
		}
	}
	return order
}

// ordered reports whether all ranks call two exchanges in the same order: collectives, and messages
// of one pair with one tag in one group. Where messages are ordered with collectives, they are,
// too.
func (e *exchange) ordered(other *exchange, unordered bool) bool {
	if e.sum || other.sum {
		return e.sum && other.sum || !unordered
	}
	if e.group != other.group || e.tag != other.tag {
		return false
	}
	return e.from == other.from && e.to == other.to || e.any && e.to == other.to
}

func (e *exchange) concerns(p *messageProgram, rank int) bool {
	if e.sum {
		return slices.Contains(p.groups[e.group], rank)
	}
	return rank == e.from || rank == e.to
}

func (e *exchange) peer(rank int) int { return e.from + e.to - rank }

// stream is where a rank queues its part.
func (e *exchange) stream(rank int) int {
	if e.sum || rank == e.from {
		return e.fromStream
	}
	return e.toStream
}

// contents are those of a message.
func (p *messageProgram) contents(e *exchange) []byte {
	n := e.bytes
	for e.source >= 0 {
		e = &p.exchanges[e.source]
	}
	return noiseOf(e.id, 0, n)
}

// noiseOf are bytes that two numbers stand for.
func noiseOf(a, b uint64, bytes int) []byte {
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], a)
	binary.LittleEndian.PutUint64(seed[8:], b)
	text := make([]byte, bytes)
	// It never fails.
	_, _ = rand.NewChaCha8(seed).Read(text)
	return text
}

// part is what a rank adds to a sum, and total the sum.
func (e *exchange) part(rank int) uint64 { return e.id * uint64(2*rank+1) }

func (p *messageProgram) total(e *exchange) (sum uint64) {
	for _, r := range p.groups[e.group] {
		sum += e.part(r)
	}
	return sum
}

func (p *messageProgram) String() string {
	var b bytes.Buffer
	fmt.Fprintf(&b, "groups %v, memory of Go: %v\n", p.groups, p.foreign)
	for i := range p.exchanges {
		e := &p.exchanges[i]
		if e.sum {
			fmt.Fprintf(&b, "%4d  sum on group %d, stream %d\n", i, e.group, e.fromStream)
			continue
		}
		fmt.Fprintf(&b, "%4d  %d bytes from rank %d, stream %d, to rank %d, stream %d, on group %d, "+
			"tag %d", i, e.bytes, e.from, e.fromStream, e.to, e.toStream, e.group, e.tag)
		if e.source >= 0 {
			fmt.Fprintf(&b, ", passed on from %d", e.source)
		}
		b.WriteByte('\n')
	}
	for r, order := range p.orders {
		fmt.Fprintf(&b, "rank %d calls %v\n", r, order)
	}
	return b.String()
}

// messagesRank is the main function of a rank.
func messagesRank(text []byte) error {
	var task messagesTask
	if err := json.Unmarshal(text, &task); err != nil {
		return err
	}
	ranks, unordered := task.world()
	o := symmem.Options{
		Backend: "host", Check: symmem.CheckEvery, Timeout: messagesTimeout,
		UnorderedMessages: unordered,
	}
	if task.GPU {
		o.Backend = "nccl"
	}
	m, err := openMessenger(context.Background(), o)
	if err != nil {
		return err
	}
	report := messagesReport{Rank: m.rt.Rank(), Program: task.First}
	for ; report.Program < task.First+task.Programs; report.Program++ {
		p := drawMessages(task.Seed, report.Program, ranks, unordered)
		p.foreign = p.foreign && !task.GPU
		m.gpu = task.GPU
		m.noise = newDraws(task.Seed+uint64(report.Program)<<32, m.rt.Rank())
		if report.Bad = m.run(p); len(report.Bad) > 0 {
			break
		}
	}
	if err := m.rt.Close(); err != nil && len(report.Bad) == 0 {
		report.Bad = append(report.Bad, fmt.Sprintf("closing: %v", err))
	}
	return json.NewEncoder(os.Stdout).Encode(report)
}

// messagesTimeout is longer than any wait in a program that is right.
const messagesTimeout = 60 * time.Second
