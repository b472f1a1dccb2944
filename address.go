package symmem

import (
	"fmt"
	"slices"
	"sync/atomic"
	"unsafe"

	"symmem/internal/alloc"
)

// Memory returns the memory at an address, for callers that know their tensors by address alone. An
// address in a live buffer of a pool, at its start or inside, gives memory of that buffer: a call
// registers it and checks it as Buffer.Memory. Any other address outside the open pools gives
// memory that is in no pool, such as memory of another library, or a buffer that was live when its
// pool was closed.
//
// The caller keeps the memory alive until the work on it is done, in either case: unlike with
// Buffer.Memory, no use on another stream and none in a capture is noted.
//
// A lookup is ordered with the Alloc and Free calls of other goroutines. Memory whose buffer is
// freed later is refused with ErrFreed by the calls that begin after that, also where the address
// belongs to another buffer by then.
//
// Errors: ErrFreed for an address of a pool that is in no live buffer, ErrOutOfRange for bytes that
// the buffer does not have, ErrInvalid for a negative or absurd length.
func (i Interop) Memory(address uintptr, bytes int64) (Memory, error) {
	if bytes < 0 || bytes > maxExtent {
		return Memory{}, invalid("memory of %d bytes at %#x", bytes, address)
	}
	if p := i.rt.arenas.find(address); p != nil && bytes > 0 {
		return addressedPool{p}.memory(address, bytes)
	}
	return foreignMemory(address, bytes), nil
}

// foreignMemory is memory that is in no pool.
func foreignMemory(address uintptr, bytes int64) Memory {
	start := *(*unsafe.Pointer)(unsafe.Pointer(&address))
	return Memory{start: start, extent: newExtent(bytes, untracked)}
}

// Buffer returns the live buffer that an address lies in, also of a closed pool. It returns
// ErrForeign for an address outside the pools, and ErrFreed for one of a pool that is in no live
// buffer.
func (i Interop) Buffer(address uintptr) (Buffer, error) {
	p := i.rt.arenas.find(address)
	if p == nil {
		return Buffer{}, fmt.Errorf("memory at %#x: %w", address, ErrForeign)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	b, ok := addressedPool{p}.index().find(address)
	if !ok {
		return Buffer{}, errFreedAt(address)
	}
	return b, nil
}

// Retire takes the buffer that begins at an address out of the lookups by address and returns it,
// for a caller that defers the Free, such as to free in an order that all ranks have in common.
// Until then the memory serves no other allocation, while Memory and Buffer return ErrFreed. It
// returns ErrForeign for an address outside the pools, and ErrDoubleFree where no buffer begins
// that was neither freed nor retired.
func (i Interop) Retire(address uintptr) (Buffer, error) {
	p := i.rt.arenas.find(address)
	if p == nil {
		return Buffer{}, fmt.Errorf("freeing %#x: %w", address, ErrForeign)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	x := addressedPool{p}.index()
	b, ok := x.find(address)
	if !ok || b.Address() != address {
		return Buffer{}, fmt.Errorf("freeing %#x: %w", address, ErrDoubleFree)
	}
	x.remove(b)
	return b, nil
}

// Live counts the buffers of a pool that were neither freed nor retired, and their bytes. Without a
// pool it counts those of all pools, closed ones included.
func (i Interop) Live(p *Pool) (buffers int, bytes int64) {
	if p != nil {
		return addressedPool{p}.live()
	}
	for _, a := range i.rt.arenas.all() {
		n, size := addressedPool{a.pool}.live()
		buffers, bytes = buffers+n, bytes+size
	}
	return buffers, bytes
}

func errFreedAt(address uintptr) error {
	return fmt.Errorf("memory at %#x: %w", address, ErrFreed)
}

// arenas lists the address ranges of a Runtime's pools. The list is replaced, never changed, so a
// lookup takes no lock.
type arenas struct {
	list atomic.Pointer[[]arenaRange]
}

// arenaRange is the range of addresses that a pool reserves.
type arenaRange struct {
	base, bytes uintptr
	pool        *Pool
}

// find returns the pool in whose range an address lies, or nil.
func (a *arenas) find(address uintptr) *Pool {
	all := a.all()
	for i := range all {
		if r := &all[i]; address-r.base < r.bytes {
			return r.pool
		}
	}
	return nil
}

// all returns the list, for reading.
func (a *arenas) all() []arenaRange {
	if list := a.list.Load(); list != nil {
		return *list
	}
	return nil
}

// set gives a pool a range, or none if it has no bytes. Runtime.mu is held.
func (a *arenas) set(p *Pool, bytes int64) {
	list := slices.DeleteFunc(slices.Clone(a.all()), func(r arenaRange) bool { return r.pool == p })
	if bytes > 0 {
		list = append(list, arenaRange{p.arena.Address(), uintptr(bytes), p})
	}
	a.list.Store(&list)
}

// addressedPool adds the lookups by address to a pool. It has no state besides the pool.
type addressedPool struct{ *Pool }

// memory returns part of a live buffer as memory that the caller keeps alive.
func (p addressedPool) memory(address uintptr, bytes int64) (Memory, error) {
	p.mu.Lock()
	b, ok := p.index().find(address)
	closed := p.closed
	p.mu.Unlock()
	if !ok {
		return Memory{}, errFreedAt(address)
	}
	from := int64(address - b.Address())
	if left := b.Size() - from; bytes > left {
		return Memory{}, fmt.Errorf("%d bytes at %#x: the buffer there ends after %d: %w",
			bytes, address, left, ErrOutOfRange)
	}
	if closed {
		return foreignMemory(address, bytes), nil
	}
	m := b.memory
	m.start, m.extent = unsafe.Add(m.start, from), newExtent(bytes, untracked)
	return m, nil
}

// live counts the buffers that lookups find, and their bytes.
func (p addressedPool) live() (buffers int, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x := p.index()
	return x.count, x.bytes
}

// index returns the index of the live buffers. The first call makes it, and has every Alloc and
// Free of the pool keep it up from then on. p.mu is held.
func (p addressedPool) index() *addressIndex {
	if !p.addresses.made {
		p.makeIndex()
	}
	return &p.addresses
}

func (p addressedPool) makeIndex() {
	p.rt.mu.Lock()
	p.rt.observers.watchBlocks()
	p.rt.mu.Unlock()
	for _, b := range suspectPool(p).liveBlocks() {
		p.addresses.insert(Buffer{Memory{
			pool: p.Pool, handle: b.Handle, start: p.start(b.Block), extent: newExtent(b.Size, b.Stream),
		}})
	}
	p.addresses.made = true
}

// allocated adds a buffer of an Alloc, if there is an index. p.mu is held.
func (p addressedPool) allocated(b Buffer) {
	if p.addresses.made {
		p.addresses.insert(b)
	}
}

// freed removes the buffer of a block that was freed, unless it was retired or there is no index.
// p.mu is held.
func (p addressedPool) freed(b alloc.Block) {
	if !p.addresses.made {
		return
	}
	have, ok := p.addresses.find(uintptr(p.start(b)))
	if ok && have.memory.handle == b.Handle {
		p.addresses.remove(have)
	}
}

// start returns the address of a block. p.mu is held.
func (p addressedPool) start(b alloc.Block) unsafe.Pointer {
	return unsafe.Add(p.segments[b.Segment].start, b.Offset)
}

// keep shrinks the range of a pool that is closed to what it keeps mapped, or ends it.
func (p addressedPool) keep(bytes int64) {
	p.rt.mu.Lock()
	defer p.rt.mu.Unlock()
	p.rt.arenas.set(p.Pool, bytes)
}

// addressIndex holds the live buffers of a pool in the order of their addresses, in chunks, so that
// a change moves few of them however many there are. Pool.mu guards it.
type addressIndex struct {
	made   bool
	chunks [][]Buffer // none is empty, except the only one
	spare  []Buffer   // an empty chunk for the next split
	count  int
	bytes  int64
}

// chunkBuffers is the most buffers in a chunk.
const chunkBuffers = 128

// find returns the buffer that an address lies in.
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

// chunkOf returns the last chunk that begins at or before an address, or the first one.
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

// insert adds a buffer.
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

// split moves the second half of a full chunk into a new one after it.
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
