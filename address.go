package symmem

import (
	"fmt"
	"slices"
	"sync/atomic"
	"unsafe"

	"symmem/internal/alloc"
)

// foreignMemory returns a Memory for an address range that belongs to no pool.
func foreignMemory(address uintptr, bytes int64) Memory {
	start := *(*unsafe.Pointer)(unsafe.Pointer(&address))
	return Memory{start: start, extent: newExtent(bytes, untracked)}
}

func errFreedAt(address uintptr) error {
	return fmt.Errorf("memory at %#x: %w", address, ErrFreed)
}

// arenas holds the address ranges of a Runtime's pools. The list is replaced, never modified. A
// lookup therefore takes no lock.
type arenas struct {
	list atomic.Pointer[[]arenaRange]
}

// arenaRange describes the address range that a pool reserves.
type arenaRange struct {
	base, bytes uintptr
	pool        *Pool
}

// find returns the pool whose range contains an address, or nil.
func (a *arenas) find(address uintptr) *Pool {
	all := a.all()
	for i := range all {
		if r := &all[i]; address-r.base < r.bytes {
			return r.pool
		}
	}
	return nil
}

// all returns the list. Callers must not modify it.
func (a *arenas) all() []arenaRange {
	if list := a.list.Load(); list != nil {
		return *list
	}
	return nil
}

// set records that a pool's range has the given size. A size of 0 removes the range. Runtime.mu is
// held.
func (a *arenas) set(p *Pool, bytes int64) {
	list := slices.DeleteFunc(slices.Clone(a.all()), func(r arenaRange) bool { return r.pool == p })
	if bytes > 0 {
		list = append(list, arenaRange{p.arena.Address(), uintptr(bytes), p})
	}
	a.list.Store(&list)
}

// addressedPool looks up the live buffers of a pool by address.
type addressedPool struct{ pool *Pool }

// memory returns the given part of a live buffer. The use of that memory is not tracked, so the
// caller must keep the buffer alive.
func (p addressedPool) memory(address uintptr, bytes int64) (Memory, error) {
	p.pool.mu.Lock()
	b, ok := p.index().find(address)
	closed := p.pool.closed
	p.pool.mu.Unlock()
	if !ok {
		return Memory{}, errFreedAt(address)
	}
	offset := int64(address - b.Address())
	if left := b.Size() - offset; bytes > left {
		return Memory{}, fmt.Errorf("%d bytes at %#x: the buffer ends after %d bytes: %w",
			bytes, address, left, ErrOutOfRange)
	}
	if closed {
		return foreignMemory(address, bytes), nil
	}
	m := b.memory
	m.start, m.extent = unsafe.Add(m.start, offset), newExtent(bytes, untracked)
	return m, nil
}

// live counts the buffers that lookups find, and their bytes.
func (p addressedPool) live() (buffers int, bytes int64) {
	p.pool.mu.Lock()
	defer p.pool.mu.Unlock()
	x := p.index()
	return x.count, x.bytes
}

// index returns the index of live buffers. The first call builds it; every later Alloc and Free of
// the pool updates it. p.pool.mu is held.
func (p addressedPool) index() *addressIndex {
	if !p.pool.addresses.built {
		p.buildIndex()
	}
	return &p.pool.addresses
}

func (p addressedPool) buildIndex() {
	for _, b := range (suspectPool{p.pool}).liveBlocks() {
		p.pool.addresses.insert(Buffer{Memory{
			pool: p.pool, handle: b.Handle, start: p.start(b.Block), extent: newExtent(b.Size, b.Stream),
		}})
	}
	p.pool.addresses.built, p.pool.watched = true, true
}

// noteAlloc adds a newly allocated buffer to the index, if there is one. p.pool.mu is held.
func (p addressedPool) noteAlloc(b Buffer) {
	if p.pool.addresses.built {
		p.pool.addresses.insert(b)
	}
}

// noteFree removes the buffer of a freed block from the index, if it is there. p.pool.mu is held.
func (p addressedPool) noteFree(b alloc.Block) {
	if !p.pool.addresses.built {
		return
	}
	have, ok := p.pool.addresses.find(uintptr(p.start(b)))
	if ok && have.memory.handle == b.Handle {
		p.pool.addresses.remove(have)
	}
}

// start returns the address at which a block begins. p.pool.mu is held.
func (p addressedPool) start(b alloc.Block) unsafe.Pointer {
	return unsafe.Add(p.pool.segments[b.Segment].start, b.Offset)
}

// addressIndex holds the live buffers of a pool in address order, in chunks. Adding or removing a
// buffer moves at most one chunk. Pool.mu guards the index.
type addressIndex struct {
	built  bool
	chunks [][]Buffer // only a single remaining chunk may be empty
	spare  []Buffer   // an empty chunk for the next split
	count  int
	bytes  int64
}

// chunkBuffers limits the number of buffers in a chunk.
const chunkBuffers = 128

// find returns the buffer that contains an address.
func (x *addressIndex) find(address uintptr) (Buffer, bool) {
	if len(x.chunks) == 0 {
		return Buffer{}, false
	}
	chunk := x.chunks[x.chunkOf(address)]
	i := indexOf(chunk, address) - 1
	if i < 0 || address-chunk[i].Address() >= uintptr(chunk[i].Size()) {
		return Buffer{}, false
	}
	return chunk[i], true
}

// chunkOf returns the index of the last chunk that begins at or before an address, or 0.
func (x *addressIndex) chunkOf(address uintptr) int {
	low, high := 0, len(x.chunks)
	for high-low > 1 {
		if middle := (low + high) / 2; x.chunks[middle][0].Address() <= address {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}

// indexOf counts the buffers of a chunk that begin at or before an address.
func indexOf(chunk []Buffer, address uintptr) int {
	low, high := 0, len(chunk)
	for low < high {
		if middle := (low + high) / 2; chunk[middle].Address() <= address {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low
}

func (x *addressIndex) insert(b Buffer) {
	if len(x.chunks) == 0 {
		x.chunks = append(x.chunks, make([]Buffer, 0, chunkBuffers))
	}
	at := x.chunkOf(b.Address())
	if len(x.chunks[at]) == chunkBuffers {
		x.split(at)
		at = x.chunkOf(b.Address())
	}
	chunk := x.chunks[at]
	x.chunks[at] = slices.Insert(chunk, indexOf(chunk, b.Address()), b)
	x.count, x.bytes = x.count+1, x.bytes+b.Size()
}

// split moves the second half of a full chunk into a new chunk that follows it.
func (x *addressIndex) split(at int) {
	half := x.spare
	if x.spare = nil; half == nil {
		half = make([]Buffer, 0, chunkBuffers)
	}
	chunk := x.chunks[at]
	x.chunks[at] = chunk[:chunkBuffers/2]
	x.chunks = slices.Insert(x.chunks, at+1, append(half, chunk[chunkBuffers/2:]...))
}

// remove removes a buffer that is in the index.
func (x *addressIndex) remove(b Buffer) {
	at := x.chunkOf(b.Address())
	i := indexOf(x.chunks[at], b.Address()) - 1
	x.chunks[at] = slices.Delete(x.chunks[at], i, i+1)
	x.count, x.bytes = x.count-1, x.bytes-b.Size()
	if len(x.chunks[at]) == 0 && len(x.chunks) > 1 {
		x.spare = x.chunks[at]
		x.chunks = slices.Delete(x.chunks, at, at+1)
	}
}
