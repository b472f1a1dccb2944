package symmem

import (
	"fmt"
	"slices"
	"sync/atomic"
	"unsafe"

	"symmem/internal/alloc"
	"symmem/internal/ranked"
)

func memoryAt(address uintptr, bytes int64) Memory {
	start := *(*unsafe.Pointer)(unsafe.Pointer(&address))
	return Memory{start: start, extent: newExtent(bytes, untracked)}
}

func newFreedError(address uintptr) error {
	return fmt.Errorf("memory at %#x: %w", address, ErrFreed)
}

// poolRanges lists the address ranges of a Runtime's pools. The list is replaced, never modified,
// so lookups need no lock.
type poolRanges struct {
	list atomic.Pointer[[]poolRange]
}

type poolRange struct {
	base, bytes uintptr
	pool        *Pool
}

// find returns the pool whose range contains the address, or nil.
func (r *poolRanges) find(address uintptr) *Pool {
	ranges := r.all()
	for i := range ranges {
		candidate := &ranges[i]
		if address-candidate.base < candidate.bytes { // wraps around if the address is below base
			return candidate.pool
		}
	}
	return nil
}

// all returns the current list, which callers must not modify.
func (r *poolRanges) all() []poolRange {
	if list := r.list.Load(); list != nil {
		return *list
	}
	return nil
}

// set changes a pool's range, or removes it if bytes is 0. The caller must hold Runtime.mu.
func (r *poolRanges) set(p *Pool, bytes int64) {
	list := slices.DeleteFunc(slices.Clone(r.all()), func(r poolRange) bool { return r.pool == p })
	if bytes > 0 {
		list = append(list, poolRange{p.segments.arena.Address(), uintptr(bytes), p})
	}
	r.list.Store(&list)
}

// addresses finds a pool's live buffers by address. It builds its index at the first lookup, and
// then updates the index at each allocation and free.
type addresses struct {
	mu      *ranked.Spin[poolMu]
	pool    *Pool
	heap    *heap
	events  *poolEvents
	isBuilt bool         // index is up to date; guarded by mu
	index   addressIndex // guarded by mu
}

// memory returns the range [address, address+bytes) of a live buffer. The caller must not free the
// buffer while the range is in use, because the pool does not record uses of the returned Memory.
func (a *addresses) memory(address uintptr, bytes int64) (Memory, error) {
	a.mu.Lock()
	b, isFound := a.indexOrBuild().find(address)
	closed := a.heap.segments.closed
	a.mu.Unlock()
	if !isFound {
		return Memory{}, newFreedError(address)
	}
	offset := int64(address - b.Address())
	if maxBytes := b.Size() - offset; bytes > maxBytes {
		return Memory{}, fmt.Errorf("%d bytes at %#x: the buffer ends after %d bytes: %w",
			bytes, address, maxBytes, ErrOutOfRange)
	}
	if closed {
		return memoryAt(address, bytes), nil
	}
	m := b.memory
	m.start, m.extent = unsafe.Add(m.start, offset), newExtent(bytes, untracked)
	return m, nil
}

// buffer returns the live buffer that contains the address, or ErrFreed.
func (a *addresses) buffer(address uintptr) (Buffer, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	b, isFound := a.indexOrBuild().find(address)
	if !isFound {
		return Buffer{}, newFreedError(address)
	}
	return b, nil
}

// findAndRemove removes the live buffer that begins at the address from the index and returns it.
// If there is none, the error is ErrDoubleFree.
func (a *addresses) findAndRemove(address uintptr) (Buffer, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	index := a.indexOrBuild()
	b, isFound := index.find(address)
	if !isFound || b.Address() != address {
		return Buffer{}, fmt.Errorf("freeing %#x: %w", address, ErrDoubleFree)
	}
	index.remove(b)
	return b, nil
}

func (a *addresses) countLive() (buffers int, bytes int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	index := a.indexOrBuild()
	return index.count, index.bytes
}

// indexOrBuild returns the index, and builds it in the first call. The caller must hold mu.
func (a *addresses) indexOrBuild() *addressIndex {
	if !a.isBuilt {
		a.build()
	}
	return &a.index
}

func (a *addresses) build() {
	for _, b := range a.heap.liveBlocks() {
		a.index.insert(Buffer{Memory{
			pool: a.pool, handle: b.Handle, start: a.heap.segments.blockStart(b.Block),
			extent: newExtent(b.Size, b.Stream),
		}})
	}
	a.isBuilt = true
	a.events.active = true // from now on, Alloc and Free call recordAlloc and recordFree
}

// recordAlloc adds a new buffer to the index if it is built. The caller must hold mu.
func (a *addresses) recordAlloc(b Buffer) {
	if a.isBuilt {
		a.index.insert(b)
	}
}

// recordFree removes a freed buffer from the index if it is there. The caller must hold mu.
func (a *addresses) recordFree(b alloc.Block) {
	if !a.isBuilt {
		return
	}
	buffer, isFound := a.index.find(uintptr(a.heap.segments.blockStart(b)))
	if isFound && buffer.memory.handle == b.Handle {
		a.index.remove(buffer)
	}
}

// addressIndex holds the live buffers in address order. Pool.mu guards it.
type addressIndex struct {
	chunks     [][]Buffer // none is empty, unless it is the only one
	emptyChunk []Buffer   // left over from a removal, for the next split; or nil
	count      int        // of all buffers
	bytes      int64      // of all buffers
}

const maxChunkBuffers = 128

// find returns the buffer that contains the address, and false if there is none.
func (a *addressIndex) find(address uintptr) (Buffer, bool) {
	if len(a.chunks) == 0 {
		return Buffer{}, false
	}
	chunk := a.chunks[a.findChunk(address)]
	i := countStartingUpTo(chunk, address) - 1
	if i < 0 || address-chunk[i].Address() >= uintptr(chunk[i].Size()) {
		return Buffer{}, false
	}
	return chunk[i], true
}

// findChunk returns the index of the last chunk that begins at or before an address. If there is
// none, it returns 0.
func (a *addressIndex) findChunk(address uintptr) int {
	low, high := 0, len(a.chunks)
	for high-low > 1 {
		if middle := (low + high) / 2; a.chunks[middle][0].Address() <= address {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}

func countStartingUpTo(chunk []Buffer, address uintptr) int {
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

func (a *addressIndex) insert(b Buffer) {
	if len(a.chunks) == 0 {
		a.chunks = append(a.chunks, make([]Buffer, 0, maxChunkBuffers))
	}
	chunkIndex := a.findChunk(b.Address())
	if len(a.chunks[chunkIndex]) == maxChunkBuffers {
		a.split(chunkIndex)
		chunkIndex = a.findChunk(b.Address())
	}
	chunk := a.chunks[chunkIndex]
	a.chunks[chunkIndex] = slices.Insert(chunk, countStartingUpTo(chunk, b.Address()), b)
	a.count++
	a.bytes += b.Size()
}

// split moves the second half of a full chunk to a new chunk behind it.
func (a *addressIndex) split(chunkIndex int) {
	newChunk := a.emptyChunk
	a.emptyChunk = nil
	if newChunk == nil {
		newChunk = make([]Buffer, 0, maxChunkBuffers)
	}
	chunk := a.chunks[chunkIndex]
	a.chunks[chunkIndex] = chunk[:maxChunkBuffers/2]
	a.chunks = slices.Insert(a.chunks, chunkIndex+1, append(newChunk, chunk[maxChunkBuffers/2:]...))
}

// remove requires that b is in the index.
func (a *addressIndex) remove(b Buffer) {
	chunkIndex := a.findChunk(b.Address())
	i := countStartingUpTo(a.chunks[chunkIndex], b.Address()) - 1
	a.chunks[chunkIndex] = slices.Delete(a.chunks[chunkIndex], i, i+1)
	a.count--
	a.bytes -= b.Size()
	if len(a.chunks[chunkIndex]) == 0 && len(a.chunks) > 1 {
		a.emptyChunk = a.chunks[chunkIndex]
		a.chunks = slices.Delete(a.chunks, chunkIndex, chunkIndex+1)
	}
}
