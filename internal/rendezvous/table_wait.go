package rendezvous

import "slices"

func (t *table) startWait(from clientID, keys []string) error {
	if t.waiterByClient[from] != nil {
		return errSecondWait
	}
	w := &waiter{client: from, missingKeys: map[string]bool{}}
	for _, key := range keys {
		if t.isMissing(key) && !w.missingKeys[key] {
			w.missingKeys[key] = true
			t.waitersByKey[key] = append(t.waitersByKey[key], w)
		}
	}
	if len(w.missingKeys) == 0 {
		t.answer(from, []byte{replyWaitOver})
		return nil
	}
	t.waiterByClient[from] = w
	return nil
}

func (t *table) wakeWaiters(key string) {
	waiters := t.waitersByKey[key]
	delete(t.waitersByKey, key)
	for _, w := range waiters {
		t.removeMissing(w, key)
	}
}

// removeMissing answers the wait if no other key is missing.
func (t *table) removeMissing(w *waiter, key string) {
	if delete(w.missingKeys, key); len(w.missingKeys) == 0 {
		delete(t.waiterByClient, w.client)
		t.answer(w.client, []byte{replyWaitOver})
	}
}

func (t *table) removeWaiter(w *waiter, key string) {
	remaining := slices.DeleteFunc(t.waitersByKey[key], func(x *waiter) bool { return x == w })
	if t.waitersByKey[key] = remaining; len(remaining) == 0 {
		delete(t.waitersByKey, key)
	}
}

// arriveAtBarrier ends the waits of all clients at the barrier when rankCount clients have arrived.
func (t *table) arriveAtBarrier(from clientID, key string, rankCount int64) error {
	if t.waiterByClient[from] != nil {
		return errSecondWait
	}
	b := t.barriers[key]
	if b == nil {
		b = &barrier{}
		t.barriers[key] = b
	}
	b.arrivalCount++
	b.clients = append(b.clients, from)
	t.waiterByClient[from] = &waiter{client: from, barrier: b}
	if b.arrivalCount < rankCount {
		return nil
	}
	for _, client := range b.clients {
		delete(t.waiterByClient, client)
		t.answer(client, []byte{replyWaitOver})
	}
	b.clients = nil
	return nil
}

// endWait ends the wait of a client that has canceled it or disconnected. A barrier still counts
// the client's arrival.
func (t *table) endWait(client clientID) {
	w := t.waiterByClient[client]
	if w == nil {
		return
	}
	delete(t.waiterByClient, client)
	for key := range w.missingKeys {
		t.removeWaiter(w, key)
	}
	if w.barrier != nil {
		w.barrier.clients = slices.DeleteFunc(w.barrier.clients,
			func(c clientID) bool { return c == client })
	}
}
