package rendezvous

import "slices"

// startWait answers a client when all keys exist, which may be at once. It returns errSecondWait
// if the client is already waiting.
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

// wakeWaiters ends the waits for a key that has been set, except waits for other missing keys.
func (t *table) wakeWaiters(key string) {
	waiters := t.waitersByKey[key]
	delete(t.waitersByKey, key)
	for _, w := range waiters {
		t.removeMissing(w, key)
	}
}

// removeMissing removes a key that now exists from a wait, and ends the wait if no other key is
// missing.
func (t *table) removeMissing(w *waiter, key string) {
	delete(w.missingKeys, key)
	if len(w.missingKeys) > 0 {
		return
	}
	delete(t.waiterByClient, w.client)
	t.answer(w.client, []byte{replyWaitOver})
}

// removeWaiter removes a wait that has ended from the waiters for a key.
func (t *table) removeWaiter(w *waiter, key string) {
	remaining := slices.DeleteFunc(t.waitersByKey[key], func(x *waiter) bool { return x == w })
	if len(remaining) == 0 {
		delete(t.waitersByKey, key)
	} else {
		t.waitersByKey[key] = remaining
	}
}

// arriveAtBarrier records that a client has arrived at the barrier with the given key. When
// rankCount clients have arrived, it answers all of them. Later arrivals are answered at once. It
// returns errSecondWait if the client is already waiting.
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

// endWait forgets the wait of a client that has canceled it or disconnected, without an answer. A
// barrier still counts the client's arrival.
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
