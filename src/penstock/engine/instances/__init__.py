"""Operations on instances, their tasks and messages, and how they are shown."""
