"""Operations on jobs, their leases, and the streams of workers."""
