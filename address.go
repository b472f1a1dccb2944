package symmem

import (
	"fmt"
	"slices"
	"sync/atomic"
	"unsafe"

	"symmem/internal/alloc"
	"symmem/internal/ranked"
)

// memoryAt returns memory that belongs to no pool, so no pool records its uses.
func memoryAt(address uintptr, bytes int64) Memory {
	start := *(*unsafe.Pointer)(unsafe.Pointer(&address)) // vet refuses unsafe.Pointer(address)
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
		offset := address - candidate.base // wraps around to a huge value below base
		if offset < candidate.bytes {
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

// set changes a pool's range to the first bytes of its arena (its address range). If bytes is 0, it
// removes the pool. The caller must hold Runtime.mu, so that no concurrent set is lost.
func (r *poolRanges) set(p *Pool, bytes int64) {
	list := slices.DeleteFunc(slices.Clone(r.all()), func(old poolRange) bool {
		return old.pool == p
	})
	if bytes > 0 {
		base := p.segments.arena.Address()
		list = append(list, poolRange{base: base, bytes: uintptr(bytes), pool: p})
	}

	r.list.Store(&list)
}

// addresses finds a pool's live buffers (allocated and not freed) by address. It builds its index
// at the first lookup, and from then on updates the index at each allocation and free. A pool
// without lookups thus pays nothing for the index.
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
// In a closed pool, the Memory has no pool.
func (a *addresses) memory(address uintptr, bytes int64) (Memory, error) {
	a.mu.Lock()
	b, isFound := a.builtIndex().find(address)
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
	m.start = unsafe.Add(m.start, offset)
	m.extent = newExtent(bytes, untracked)
	return m, nil
}

// buffer returns the live buffer that contains the address, or ErrFreed.
func (a *addresses) buffer(address uintptr) (Buffer, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	b, isFound := a.builtIndex().find(address)
	if !isFound {
		return Buffer{}, newFreedError(address)
	}

	return b, nil
}

// findAndRemove removes the live buffer that begins at the address from the index and returns it,
// for a caller that then frees it. If there is none, the error is ErrDoubleFree.
func (a *addresses) findAndRemove(address uintptr) (Buffer, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	index := a.builtIndex()
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
	index := a.builtIndex()
	return index.count, index.bytes
}

// builtIndex returns the index. The first call builds it. The caller must hold mu.
func (a *addresses) builtIndex() *addressIndex {
	if !a.isBuilt {
		a.build()
	}

	return &a.index
}

func (a *addresses) build() {
	for _, b := range a.heap.liveBlocks() {
		memory := Memory{
			pool: a.pool, handle: b.Handle, start: a.heap.segments.blockStart(b.Block),
			extent: newExtent(b.Size, b.Stream),
		}
		a.index.insert(Buffer{memory})
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

	start := uintptr(a.heap.segments.blockStart(b))
	buffer, isFound := a.index.find(start)
	isInIndex := isFound && buffer.memory.handle == b.Handle // not after findAndRemove
	if isInIndex {
		a.index.remove(buffer)
	}
}

// addressIndex holds the live buffers in address order. It is a list of short sorted chunks, so
// that an insertion moves few buffers. Pool.mu guards it.
type addressIndex struct {
	chunks     [][]Buffer // in address order; none is empty, unless it is the only one
	emptyChunk []Buffer   // left over from a removal, for the next split; or nil
	count      int        // number of all buffers
	bytes      int64      // total size of all buffers
}

// maxChunkBuffers is the capacity of each chunk.
const maxChunkBuffers = 128

// find returns the buffer that contains the address, and false if there is none.
func (a *addressIndex) find(address uintptr) (Buffer, bool) {
	if len(a.chunks) == 0 {
		return Buffer{}, false
	}

	chunk := a.chunks[a.findChunk(address)]
	i := countStartingUpTo(chunk, address) - 1 // the last buffer that starts at or before address
	if i < 0 {
		return Buffer{}, false
	}

	offset := address - chunk[i].Address()
	if offset >= uintptr(chunk[i].Size()) {
		return Buffer{}, false
	}

	return chunk[i], true
}

// findChunk returns the index of the last chunk that begins at or before an address. If there is
// none, it returns 0.
func (a *addressIndex) findChunk(address uintptr) int {
	// Chunks from high on begin behind the address. Chunk low does not, unless low is 0.
	low, high := 0, len(a.chunks)
	for high-low > 1 {
		middle := (low + high) / 2
		if a.chunks[middle][0].Address() <= address {
			low = middle
		} else {
			high = middle
		}
	}

	return low
}

// countStartingUpTo returns how many buffers of a sorted chunk start at or before an address.
func countStartingUpTo(chunk []Buffer, address uintptr) int {
	low, high := 0, len(chunk)
	for low < high {
		middle := (low + high) / 2
		if chunk[middle].Address() <= address {
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
	position := countStartingUpTo(chunk, b.Address())
	a.chunks[chunkIndex] = slices.Insert(chunk, position, b)
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
	firstHalf, secondHalf := chunk[:maxChunkBuffers/2], chunk[maxChunkBuffers/2:]
	newChunk = append(newChunk, secondHalf...)
	a.chunks[chunkIndex] = firstHalf
	a.chunks = slices.Insert(a.chunks, chunkIndex+1, newChunk)
}

// remove requires that b is in the index.
func (a *addressIndex) remove(b Buffer) {
	chunkIndex := a.findChunk(b.Address())
	chunk := a.chunks[chunkIndex]
	i := countStartingUpTo(chunk, b.Address()) - 1
	chunk = slices.Delete(chunk, i, i+1)
	a.chunks[chunkIndex] = chunk
	a.count--
	a.bytes -= b.Size()
	if len(chunk) == 0 && len(a.chunks) > 1 {
		a.emptyChunk = chunk
		a.chunks = slices.Delete(a.chunks, chunkIndex, chunkIndex+1)
	}
}
