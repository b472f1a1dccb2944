package rendezvous

import "slices"

// A client can wait in two ways. While it waits, the table has a waiter for it. The reply comes
// when the wait ends:
//
//   - WAIT for the keys "a" and "b": if both are missing, both become missingKeys of the waiter. A
//     SET of "a" removes "a" from them. A SET of "b" then removes the last one and ends the wait.
//   - BARRIER for a key and 3 clients: the first two clients that arrive wait. The third arrival
//     ends their waits.

// startWait executes a WAIT. It replies at once if all keys are set. It returns errSecondWait if
// the client is already waiting.
func (t *table) startWait(from clientID, keys []string) error {
	if t.waiterByClient[from] != nil {
		return errSecondWait
	}

	w := &waiter{client: from, missingKeys: map[string]bool{}}
	for _, key := range keys {
		isRepeated := w.missingKeys[key] // A WAIT may list a key twice.
		if t.isMissing(key) && !isRepeated {
			w.missingKeys[key] = true
			t.waitersByKey[key] = append(t.waitersByKey[key], w)
		}
	}

	if len(w.missingKeys) == 0 {
		t.addReply(from, []byte{replyWaitOver})
		return nil
	}

	t.waiterByClient[from] = w
	return nil
}

// wakeWaiters is called when a key has been set. It ends the waits for which no other key is
// missing.
func (t *table) wakeWaiters(key string) {
	waiters := t.waitersByKey[key]
	delete(t.waitersByKey, key)
	for _, w := range waiters {
		t.removeMissingKey(w, key)
	}
}

// removeMissingKey removes a key from w.missingKeys. If it was the last one, the wait ends. The
// caller removes w from t.waitersByKey.
func (t *table) removeMissingKey(w *waiter, key string) {
	delete(w.missingKeys, key)
	if len(w.missingKeys) == 0 {
		t.replyToWaiter(w.client)
	}
}

// replyToWaiter ends the wait of a client with a reply.
func (t *table) replyToWaiter(client clientID) {
	delete(t.waiterByClient, client)
	t.addReply(client, []byte{replyWaitOver})
}

// removeWaiter removes w from the waiters for a key.
func (t *table) removeWaiter(w *waiter, key string) {
	isRemoved := func(other *waiter) bool { return other == w }
	remaining := slices.DeleteFunc(t.waitersByKey[key], isRemoved)
	if len(remaining) == 0 {
		delete(t.waitersByKey, key)
	} else {
		t.waitersByKey[key] = remaining
	}
}

// arriveAtBarrier executes a BARRIER: the client arrives at the barrier with the given key. From
// arrival number rankCount on, all clients that have arrived get a reply at once. It returns
// errSecondWait if the client is already waiting.
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
		t.replyToWaiter(client)
	}

	b.clients = nil
	return nil
}

// endWait ends the wait of a client that has canceled it or disconnected, without a reply. A
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
		isRemoved := func(other clientID) bool { return other == client }
		w.barrier.clients = slices.DeleteFunc(w.barrier.clients, isRemoved)
	}
}
