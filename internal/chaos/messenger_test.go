package chaos

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"symmem"
)

// messenger is a rank that runs programs of messages, one after the other.
type messenger struct {
	ctx     context.Context
	rt      *symmem.Runtime
	pool    *symmem.Pool
	groups  []*symmem.Group
	streams [streams]*symmem.Stream
	// noise draws when this rank is late, differently from the others.
	noise *rand.Rand
	// gpu reports whether memory is that of a GPU, of which sends and recvs are copies.
	gpu bool
	// sends and recvs are the memory of the program under way, and what the processor sees of it.
	sends, recvs         []byte
	sendMemory, recvArea symmem.Memory
	// received are events behind messages that are passed on, by exchange.
	received map[int]*symmem.Event

	mu sync.Mutex
	// sources are who has sent what was received from anybody, by exchange: ranks of its group.
	sources map[int]int // guarded by mu
}

func openMessenger(ctx context.Context, o symmem.Options) (*messenger, error) {
	rt, err := symmem.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	m := &messenger{ctx: ctx, rt: rt}
	odd, err := rt.World().Split(ctx, rt.Rank()%2, 0)
	if err != nil {
		return nil, err
	}
	m.groups = []*symmem.Group{rt.World(), nil, nil}
	m.groups[1+rt.Rank()%2] = odd
	for i := range m.streams {
		if m.streams[i], err = rt.NewStream(); err != nil {
			return nil, err
		}
	}
	m.pool, err = rt.NewPool(symmem.PoolOptions{Domain: rt.World()})
	return m, err
}

// run runs a program and returns what is wrong.
func (m *messenger) run(p *messageProgram) (bad []string) {
	buffers, err := m.prepare(p)
	if err != nil {
		return []string{fmt.Sprintf("preparing: %v", err)}
	}
	if bad = m.call(p); len(bad) > 0 {
		return bad
	}
	for i, s := range m.streams {
		if err := s.Synchronize(m.ctx); err != nil {
			bad = append(bad, fmt.Sprintf("stream %d: %v", i, err))
		}
	}
	if len(bad) > 0 {
		return bad
	}
	if m.gpu {
		if err := m.exchangeImage(symmem.Host(m.recvs), m.recvArea); err != nil {
			return []string{fmt.Sprintf("reading memory: %v", err)}
		}
	}
	bad = m.judge(p)
	for _, b := range buffers {
		if err := b.Free(); err != nil {
			bad = append(bad, err.Error())
		}
	}
	return bad
}

// prepare makes and fills the memory of a program, and meets the other ranks.
func (m *messenger) prepare(p *messageProgram) (buffers []symmem.Buffer, err error) {
	m.received, m.sources = map[int]*symmem.Event{}, map[int]int{}
	if p.foreign {
		m.sends, m.recvs = make([]byte, p.sends), make([]byte, p.recvs)
		m.sendMemory, m.recvArea = symmem.Host(m.sends), symmem.Host(m.recvs)
	} else {
		for _, n := range []int{p.sends, p.recvs} {
			b, err := m.pool.Alloc(int64(n))
			if err != nil {
				return nil, err
			}
			buffers = append(buffers, b)
			// Not every rank uses it on every stream, but the histories of a pool are alike.
			for _, s := range m.streams {
				if err := b.UseOn(s); err != nil {
					return nil, err
				}
			}
		}
		if err := m.lookAt(p, buffers); err != nil {
			return nil, err
		}
	}
	for i := range m.recvs {
		m.recvs[i] = gapByte
	}
	me := m.rt.Rank()
	for i := range p.exchanges {
		e := &p.exchanges[i]
		if e.sum {
			binary.NativeEndian.PutUint64(m.sends[e.out:], e.part(me))
		} else if e.from == me && e.source < 0 {
			copy(m.sends[e.out:], p.contents(e))
		}
	}
	if m.gpu {
		err := errors.Join(m.exchangeImage(m.sendMemory, symmem.Host(m.sends)),
			m.exchangeImage(m.recvArea, symmem.Host(m.recvs)))
		if err != nil {
			return nil, err
		}
	}
	if err := m.rt.World().Barrier(m.ctx, nil); err != nil {
		return nil, err
	}
	return buffers, m.rt.DefaultStream().Synchronize(m.ctx)
}

// lookAt finds the memory of a program in its two buffers.
func (m *messenger) lookAt(p *messageProgram, buffers []symmem.Buffer) (err error) {
	if m.sendMemory, err = buffers[0].Memory().Slice(0, int64(p.sends)); err != nil {
		return err
	}
	if m.recvArea, err = buffers[1].Memory().Slice(0, int64(p.recvs)); err != nil {
		return err
	}
	if m.gpu {
		m.sends, m.recvs = make([]byte, p.sends), make([]byte, p.recvs)
		return nil
	}
	sends, err := symmem.View[byte](buffers[0])
	if err != nil {
		return err
	}
	recvs, err := symmem.View[byte](buffers[1])
	m.sends, m.recvs = sends[:p.sends], recvs[:p.recvs]
	return err
}

// exchangeImage copies between memory of the GPU and its image.
func (m *messenger) exchangeImage(dst, src symmem.Memory) error {
	s := m.rt.DefaultStream()
	return errors.Join(s.Copy(dst, src), s.Synchronize(m.ctx))
}

// call makes all calls of this rank.
func (m *messenger) call(p *messageProgram) []string {
	me := m.rt.Rank()
	for _, i := range p.orders[me] {
		e := &p.exchanges[i]
		if err := m.disturb(e.stream(me)); err != nil {
			return []string{fmt.Sprintf("a function of the host: %v", err)}
		}
		call := m.recv
		if e.sum {
			call = m.sum
		} else if e.from == me {
			call = m.send
		}
		if err := call(p, i); err != nil {
			return []string{fmt.Sprintf("call %d: %v", i, err)}
		}
	}
	return nil
}

func (m *messenger) sum(p *messageProgram, i int) error {
	e := &p.exchanges[i]
	send, err := m.sendMemory.Slice(int64(e.out), 8)
	if err != nil {
		return err
	}
	recv, err := m.recvArea.Slice(int64(e.in), 8)
	if err != nil {
		return err
	}
	return m.groups[e.group].AllReduce(m.ctx, send, recv, 1, symmem.Int64, symmem.Sum,
		m.streams[e.fromStream])
}

// send sends a message, behind the one that it passes on.
func (m *messenger) send(p *messageProgram, i int) error {
	e := &p.exchanges[i]
	s, memory, at := m.streams[e.fromStream], m.sendMemory, e.out
	if e.source >= 0 {
		memory, at = m.recvArea, p.exchanges[e.source].in
		if err := s.Wait(m.received[e.source]); err != nil {
			return err
		}
	}
	memory, err := memory.Slice(int64(at), int64(e.bytes))
	if err != nil {
		return err
	}
	count, t := e.elements()
	return m.groups[e.group].SendTagged(m.ctx, memory, count, t, m.peer(e), e.tag, s)
}

// recv receives a message, and records an event behind it.
func (m *messenger) recv(p *messageProgram, i int) error {
	e := &p.exchanges[i]
	memory, err := m.recvArea.Slice(int64(e.in), int64(e.bytes))
	if err != nil {
		return err
	}
	count, t := e.elements()
	s := m.streams[e.toStream]
	call := symmem.Call{
		Operation: symmem.OpRecv, Type: t, Root: m.peer(e), Tag: e.tag, Count: count, Recv: memory,
	}
	if e.any {
		call.Root, call.Arrived = symmem.AnySource, func(source int) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.sources[i] = source
		}
	}
	if err := m.rt.Interop().Do(m.ctx, m.groups[e.group], call, s); err != nil {
		return err
	}
	event, err := m.rt.NewEvent()
	if err != nil {
		return err
	}
	m.received[i] = event
	return s.Record(event)
}

func (e *exchange) elements() (int64, symmem.DataType) {
	if e.wide {
		return int64(e.bytes) / 4, symmem.Int32
	}
	return int64(e.bytes), symmem.Uint8
}

// peer is the other rank's number in the group.
func (m *messenger) peer(e *exchange) int {
	other := e.peer(m.rt.Rank())
	if e.group > 0 {
		return other / 2
	}
	return other
}

// disturb now and then holds up this rank or one of its streams.
func (m *messenger) disturb(stream int) error {
	if m.noise.IntN(16) == 0 {
		<-time.After(time.Duration(m.noise.IntN(int(time.Millisecond))))
	}
	if m.noise.IntN(10) != 0 {
		return nil
	}
	pause := time.Duration(m.noise.IntN(int(4 * time.Millisecond)))
	return m.streams[stream].Host(func() { <-time.After(pause) })
}

// judge looks at everything that this rank has received, and at what lies between.
func (m *messenger) judge(p *messageProgram) (bad []string) {
	want := bytes.Repeat([]byte{gapByte}, len(m.recvs))
	me := m.rt.Rank()
	taken := map[[2]int]int{}
	for _, i := range p.orders[me] {
		e := &p.exchanges[i]
		n := 8
		switch {
		case e.sum:
			binary.NativeEndian.PutUint64(want[e.in:], p.total(e))
		case e.to != me:
			continue
		case e.any:
			contents, why := m.fromAnybody(p, i, taken)
			if why != "" {
				return append(bad, why)
			}
			n = copy(want[e.in:], contents)
		default:
			n = copy(want[e.in:], p.contents(e))
		}
		if got := m.recvs[e.in : e.in+n]; !bytes.Equal(got, want[e.in:e.in+n]) {
			bad = append(bad, fmt.Sprintf("wrong: %d is %s", i, m.whose(p, got)))
		}
		copy(want[e.in:], m.recvs[e.in:e.in+n])
	}
	if len(bad) == 0 && !bytes.Equal(want, m.recvs) {
		bad = append(bad, "wrong: memory was written that is no message's")
	}
	return bad
}

// fromAnybody is the message that this rank must have received in an exchange, which took it from
// anybody: the next that the rank sent who is said to have sent it. taken counts them by group and
// rank of the world.
func (m *messenger) fromAnybody(
	p *messageProgram, i int, taken map[[2]int]int,
) (contents []byte, why string) {
	e := &p.exchanges[i]
	m.mu.Lock()
	source, known := m.sources[i]
	m.mu.Unlock()
	if !known || source < 0 || source >= len(p.groups[e.group]) {
		return nil, fmt.Sprintf("wrong: %d has come from rank %d of its group", i, source)
	}
	from := p.groups[e.group][source]
	next := taken[[2]int{e.group, from}]
	taken[[2]int{e.group, from}]++
	for _, sent := range p.orders[from] {
		s := &p.exchanges[sent]
		if !s.any || s.group != e.group || s.from != from || s.to != e.to {
			continue
		}
		if next == 0 {
			return p.contents(s), ""
		}
		next--
	}
	return nil, fmt.Sprintf("wrong: %d has come from rank %d, which sent less", i, from)
}

// whose says which message it is that has come instead of another.
func (m *messenger) whose(p *messageProgram, got []byte) string {
	for i := range p.exchanges {
		if e := &p.exchanges[i]; !e.sum && len(got) > 0 && bytes.HasPrefix(p.contents(e), got) {
			return fmt.Sprintf("%d", i)
		}
	}
	return fmt.Sprintf("%d bytes of none", len(got))
}
